#include "pool.h"

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace SPECDEC_VARIANT {

namespace {

// Spins of a waiting thread before it yields: about 20 microseconds, several times a phase of a small step.
constexpr int SPINS = 500;
// Spins of an idle thread before it sleeps: about the time between two steps of a small model.
constexpr int IDLE_SPINS = 2000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  bool run(int threads, void (*work)(void *, int), void *job) {
    std::unique_lock<std::mutex> mine(busy_, std::try_to_lock);
    if (!mine.owns_lock() || !grow(threads - 1)) return false;
    left_.store(threads - 1, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = work, job_ = job, threads_ = threads;
      round_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    work(job, 0);
    for (int spins = 0; left_.load(std::memory_order_acquire) != 0; spins++) spins < SPINS ? pause() : std::this_thread::yield();
    return true;
  }

 private:
  bool grow(int workers) {
    try {
      for (; workers_ < workers; workers_++) std::thread(&Pool::serve, this, workers_ + 1, round_.load()).detach();
    } catch (const std::system_error &) {
      return false;
    }
    return true;
  }

  void serve(int thread, uint32_t seen) {
    while (true) {
      for (int spins = 0; spins < IDLE_SPINS && round_.load(std::memory_order_acquire) == seen; spins++) pause();
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
      seen = round_.load(std::memory_order_relaxed);
      const auto work = work_;
      void *const job = job_;
      const bool wanted = thread < threads_;
      lock.unlock();
      if (!wanted) continue;
      work(job, thread);
      left_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex busy_, mutex_;
  std::condition_variable wake_;
  std::atomic<uint32_t> round_{0};
  std::atomic<int> left_{0};
  int workers_ = 0, threads_ = 0;
  void (*work_)(void *, int) = nullptr;
  void *job_ = nullptr;
};

// A forked process has none of its parent's threads: it gets its own pool. Pools are never destroyed,
// because their threads wait on them until the process ends.
Pool *pool() {
  static std::mutex mutex;
  static Pool *current = nullptr;
  static pid_t owner = 0;
  std::lock_guard<std::mutex> lock(mutex);
  if (owner != getpid()) {
    current = new Pool;
    owner = getpid();
  }
  return current;
}

}  // namespace

void Barrier::wait() {
  const uint32_t round = round_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; round_.load(std::memory_order_acquire) == round; spins++) spins < SPINS ? pause() : std::this_thread::yield();
}

bool run_together(int threads, void (*work)(void *, int), void *job) { return pool()->run(threads, work, job); }

}  // namespace SPECDEC_VARIANT
