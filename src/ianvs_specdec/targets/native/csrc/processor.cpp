// Which of the variants the processor can run. Also compiled alone, for every processor of the architecture.
#include <cstdint>
#include <string>

#include "specdec.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace SPECDEC_VARIANT {

namespace {

#if defined(__x86_64__)

// Bits of the leaves 1 and 7 of the instruction cpuid, and of the register XCR0 (Intel's Software Developer's Manual,
// volume 2A, CPUID, and volume 1, chapters 13 and 18).
struct Processor {
  uint32_t a = 0, b = 0, c = 0, d = 0, features = 0, more_b = 0, more_c = 0, more_d = 0, newer_a = 0;
  uint64_t saved = 0;

  Processor() {
    if (!__get_cpuid(1, &a, &b, &features, &d)) return;
    if (features & bit_OSXSAVE) saved = enabled();
    if (__get_cpuid_count(7, 0, &a, &more_b, &more_c, &more_d) && a >= 1) __get_cpuid_count(7, 1, &newer_a, &b, &c, &d);
  }

  static uint64_t enabled() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
  }

  static bool all(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

  bool avx2() const {
    return all(saved, 0x6) && all(features, bit_FMA | bit_F16C | bit_AVX | bit_MOVBE) &&
           all(more_b, bit_AVX2 | bit_BMI | bit_BMI2);
  }
  bool avx512() const {
    return avx2() && all(saved, 0xe6) && all(more_b, bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL);
  }
  bool avx512bf16() const { return avx512() && all(more_c, bit_AVX512VNNI) && all(newer_a, 1u << 5); }
  bool amx() const {
    constexpr uint32_t BF16 = 1u << 22, TILE = 1u << 24, INT8 = 1u << 25;
    return avx512bf16() && all(saved, 0x60000) && all(more_d, BF16 | TILE | INT8) && tiles_permitted();
  }

  // Linux grants a process the tile registers on request.
  static bool tiles_permitted() {
#if defined(__linux__)
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
  }
};

#endif

std::string names() {
  std::string found;
#if defined(__x86_64__)
  const Processor processor;
  if (processor.amx()) found += "amx ";
  if (processor.avx512bf16()) found += "avx512bf16 ";
  if (processor.avx512()) found += "avx512 ";
  if (processor.avx2()) found += "avx2 ";
#endif
  return found + "generic";
}

}  // namespace
}  // namespace SPECDEC_VARIANT

const char *specdec_runnable(void) {
  static const std::string found = SPECDEC_VARIANT::names();
  return found.c_str();
}
