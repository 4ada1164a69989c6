#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

// Longer than what one thread does alone between two parts of a call, and than a task of a product at its largest.
constexpr std::chrono::microseconds kWatch{100};

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until condition() holds, for at most kWatch: whether it does.
template <class Condition>
bool watch(const Condition& condition) {
  constexpr int kPauses = 16;  // between two looks at the clock
  const auto end = std::chrono::steady_clock::now() + kWatch;
  do {
    for (int i = 0; i < kPauses; ++i) {
      if (condition()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

struct Job {
  void (*task)(void*, int64_t);
  void* context;
  int64_t tasks;
  std::atomic<int64_t> next{0};

  void work() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) task(context, i);
  }
};

class Pool {
 public:
  std::atomic<int32_t> attentive{0};  // calls that have announced more parts

  void run(int32_t threads, Job& job) {
    std::unique_lock<std::mutex> only(call_, std::try_to_lock);
    if (!only.owns_lock()) return job.work();
    {
      std::lock_guard<std::mutex> lock(state_);
      while (workers_ < threads - 1) {
        std::thread([this] { serve(); }).detach();
        ++workers_;
      }
      job_ = &job;
      wanted_ = threads - 1;
      for (int32_t i = 0; i < wanted_ && i < sleeping_; ++i) wake_.notify_one();
    }
    job.work();
    {
      std::lock_guard<std::mutex> lock(state_);
      job_ = nullptr;  // who comes only now finds nothing
      wanted_ = 0;
    }
    if (watch([this] { return active_ == 0; })) return;
    std::unique_lock<std::mutex> lock(state_);
    idle_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(state_);
    for (;;) {
      wait_for_job(lock);
      Job* job = job_;
      --wanted_;
      ++active_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--active_ == 0) idle_.notify_one();
    }
  }

  void wait_for_job(std::unique_lock<std::mutex>& lock) {
    bool patient = true;
    while (wanted_ == 0) {
      if (attentive > 0 && patient) {
        lock.unlock();
        patient = watch([this] { return wanted_ > 0 || attentive == 0; });
        lock.lock();
      } else {
        ++sleeping_;
        wake_.wait(lock);
        --sleeping_;
      }
    }
  }

  std::mutex call_, state_;
  std::condition_variable wake_, idle_;
  Job* job_ = nullptr;
  int32_t workers_ = 0, sleeping_ = 0;
  std::atomic<int32_t> wanted_{0}, active_{0};  // written under state_
};

// Never destroyed: its threads may outlive the end of main. A forked child has none of them and starts with a new one.
Pool* pool = nullptr;
std::once_flag made;

Pool& the_pool() {
  std::call_once(made, [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
  });
  return *pool;
}

}  // namespace

void run_tasks(int32_t threads, int64_t tasks, void (*task)(void*, int64_t), void* context) {
  Job job{task, context, tasks};
  if (threads > tasks) threads = (int32_t)tasks;
  if (threads <= 1) return job.work();
  the_pool().run(threads, job);
}

StayAwake::StayAwake(int32_t threads) : several_(threads > 1) {
  if (several_) ++the_pool().attentive;
}

StayAwake::~StayAwake() {
  if (several_) --the_pool().attentive;
}
