// Memory for packed weights, which products read from front to back as fast as memory gives it. Walking the tables of
// 4 KiB pages costs a third of that speed (Zen 4, virtual machine: two threads read 28 GB/s, with huge pages 41), so
// weights lie one after the other in blocks that ask for huge pages.
#pragma once

#include <stdint.h>

#include <memory>

// Aligned to cache lines; null when memory is short. What is given back goes back to the system: whole huge pages at once,
// a part of one when the system, short of memory, splits it.
std::shared_ptr<char> weight_memory(int64_t bytes);
