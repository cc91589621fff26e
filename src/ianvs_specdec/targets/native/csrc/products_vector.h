// Vectors of the widest registers of the instruction set, and conversions between number formats.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace SPECDEC_VARIANT {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef int16_t Shorts __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfWords __attribute__((vector_size(kLanes * 4)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

template <class To, class From>
inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits are moved, not converted");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

template <class Vector>
inline Vector load(const void* from) {
    Vector vector;
    memcpy(&vector, from, sizeof(vector));
    return vector;
}

template <class Vector>
inline void store(void* to, Vector vector) {
    memcpy(to, &vector, sizeof(vector));
}

inline Floats splat(float value) { return value - Floats{}; }
inline Ints splat(int32_t value) { return value - Ints{}; }

// a * b + c, rounded once where the processor can. Never left to the compiler, which may choose differently for
// blocks of different numbers of rows.
inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

inline Floats to_floats(Ints values) { return __builtin_convertvector(values, Floats); }

inline Words widen(Halves values) { return __builtin_convertvector(values, Words); }

// Shifted back and forth on AVX2, where no register is free for a mask.
inline Words upper_halves(Words pairs) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (Words)_mm256_slli_epi32(_mm256_srli_epi32((__m256i)pairs, 16), 16);
#else
    return pairs & 0xffff0000u;
#endif
}

inline Floats from_bf16(Halves values) { return bits<Floats>(widen(values) << 16); }

inline Floats from_f16(Halves values) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, bits<__m256i>(values));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtph_ps(bits<__m128i>(values));
#elif defined(__aarch64__)
    return (Floats)vcvt_f32_f16(bits<float16x4_t>(values));
#else
    const float rebias = 0x1p112f;  // exponents count from -127 in place of -15
    Words word = widen(values), magnitude = (word & 0x7fffu) << 13;
    Words special = bits<Words>((word & 0x7c00u) == 0x7c00u) & 0x7f800000u;  // infinity and not a number
    return bits<Floats>(bits<Words>(bits<Floats>(magnitude) * rebias) | special | (word & 0x8000u) << 16);
#endif
}

// To the nearest, ties to even; not a number stays so.
inline Halves to_bf16(Floats values) {
    const Words word = bits<Words>(values);
    const Words nearest = word + 0x7fffu + (word >> 16 & 1u);
    const Words kept = word | 0x400000u;
    return __builtin_convertvector((values == values ? nearest : kept) >> 16, Halves);
}

inline float float_of_bf16(uint16_t half) { return bits<float>((uint32_t)half << 16); }

inline uint16_t bf16_of(float value) { return to_bf16(splat(value))[0]; }

inline uint16_t f16_of(float value) {
    uint32_t word = bits<uint32_t>(value), sign = word >> 16 & 0x8000u;
    word &= 0x7fffffffu;
    if (word > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (word >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);  // from 65520 on: infinity
    if (word < 0x38800000u)  // below 2 ** -14 the steps are those of floats from 0.5 to 1
        return (uint16_t)(sign | (bits<uint32_t>(bits<float>(word) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (word + 0xc8000fffu + (word >> 13 & 1)) >> 13);
}

inline float float_of_f16(uint16_t half) {
    Halves values = {};
    values[0] = half;
    return from_f16(values)[0];
}

}  // namespace
}  // namespace SPECDEC_VARIANT
