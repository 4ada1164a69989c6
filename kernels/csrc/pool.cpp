#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

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
    }
    if (threads == 2) {
      wake_.notify_one();
    } else {
      wake_.notify_all();
    }
    job.work();
    std::unique_lock<std::mutex> lock(state_);
    job_ = nullptr;  // who wakes only now finds nothing and sleeps on
    wanted_ = 0;
    idle_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(state_);
    for (;;) {
      wake_.wait(lock, [this] { return wanted_ > 0; });
      Job* job = job_;
      --wanted_;
      ++active_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--active_ == 0) idle_.notify_one();
    }
  }

  std::mutex call_, state_;
  std::condition_variable wake_, idle_;
  Job* job_ = nullptr;
  int32_t workers_ = 0, wanted_ = 0, active_ = 0;
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
