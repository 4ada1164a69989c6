// Threads that share out the tasks of one call. They sleep when there is nothing to do; they only watch for work, for at
// most kWatch, between the parallel parts of one call (StayAwake) and until the last task of a part has ended.
#pragma once

#include <stdint.h>

// Calls task(context, i) for i in 0 to tasks - 1, on the calling thread and up to threads - 1 others; returns when all are
// done. Tasks of one call run at the same time and in any order. While another call has the threads, the caller works alone.
void run_tasks(int32_t threads, int64_t tasks, void (*task)(void* context, int64_t i), void* context);

template <class Task>
void parallel(int32_t threads, int64_t tasks, const Task& task) {
  run_tasks(
      threads, tasks, [](void* context, int64_t i) { (*static_cast<const Task*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(&task)));
}

// While it lives, more parallel parts follow soon: threads that have ended their tasks watch for the next ones, which
// they then begin in less than a microsecond, where waking one that sleeps takes some fifty (a virtual processor that
// halted).
class StayAwake {
 public:
  explicit StayAwake(int32_t threads);
  ~StayAwake();
  StayAwake(const StayAwake&) = delete;
  StayAwake& operator=(const StayAwake&) = delete;

 private:
  bool several_;
};
