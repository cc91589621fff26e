// The threads of the library. They wait between steps; the caller's thread takes part in every step.
#pragma once

#include <atomic>
#include <cstdint>

namespace SPECDEC_VARIANT {

// A barrier for the threads of a job. It spins, since the phases of a step are short, and yields after a while, since
// the other thread may have no processor.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait();

 private:
  const int threads_;
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> round_{0};
};

// Calls `work(job, thread)` for thread = 0 to threads - 1 at the same time and returns after all of them. Returns
// false without a call if the threads are in use or cannot be started: the caller then computes alone.
bool run_together(int threads, void (*work)(void *job, int thread), void *job);

// One thread's share of `count` items: [begin, end).
struct Range {
  int64_t begin, end;
};

inline Range range_of(int64_t count, int thread, int threads) {
  return {count * thread / threads, count * (thread + 1) / threads};
}

}  // namespace SPECDEC_VARIANT
