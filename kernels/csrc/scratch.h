// Memory that a thread keeps between calls, so that a call neither asks the system for pages nor waits for them.
#pragma once

#include "matrix.h"

// Parts of one block, handed out one after the other. Count all of them first, then reserve, then take in any order.
class Scratch {
 public:
  template <class T>
  static int64_t size(int64_t count) {
    return (count * (int64_t)sizeof(T) + 63) / 64 * 64;
  }

  // Gives back what was taken before. False when memory is short.
  bool reserve(int64_t bytes) {
    used_ = 0;
    if (bytes <= capacity_) return true;
    capacity_ = 0;
    memory_ = allocate<char>(bytes);
    if (memory_) capacity_ = bytes;
    return capacity_ > 0;
  }

  template <class T>
  T* take(int64_t count) {
    T* part = reinterpret_cast<T*>(memory_.get() + used_);
    used_ += size<T>(count);
    return part;
  }

  // Blocks larger than kKept are not kept.
  void trim() {
    if (capacity_ <= kKept) return;
    memory_.reset();
    capacity_ = 0;
  }

  static Scratch& of_this_thread() {
    static thread_local Scratch scratch;
    return scratch;
  }

  // For what a task needs while the call that it is a part of may hold the thread's other block. Nobody trims it: only for
  // what is small whatever the call.
  static Scratch& of_this_task() {
    static thread_local Scratch scratch;
    return scratch;
  }

 private:
  // More than a chunk of group_ffn.cpp: fetching 17 MiB of fresh pages took a seventh of a call of 256 rows.
  static constexpr int64_t kKept = 32 << 20;
  Memory<char> memory_;
  int64_t capacity_ = 0, used_ = 0;
};
