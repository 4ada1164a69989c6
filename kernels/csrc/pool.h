// Threads that share out the tasks of one call. They sleep when there is nothing to do: no spinning.
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
