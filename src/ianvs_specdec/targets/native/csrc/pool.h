// The threads of the library. They wait between steps; the caller's own thread takes part in every one.
#pragma once

#include <atomic>
#include <cstdint>

namespace SPECDEC_VARIANT {

// Where all threads of a job wait for each other. It spins, since the phases of a step are short, and lets others run
// after a while, since a thread that is waited for may have no processor.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait();

 private:
  const int threads_;
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> round_{0};
};

// Calls `work(job, thread)` for thread = 0 to threads - 1 at the same time and returns after all of them. False, and
// nothing was called, where another caller has the threads or they cannot be started: the caller computes alone then.
bool run_together(int threads, void (*work)(void *job, int thread), void *job);

// The part of `count` things that is one thread's: [begin, end).
struct Range {
  int64_t begin, end;
};

inline Range range_of(int64_t count, int thread, int threads) {
  return {count * thread / threads, count * (thread + 1) / threads};
}

}  // namespace SPECDEC_VARIANT
