// What the machine can do at most, for benchmarks to measure against.

#include "abi.h"
#include "pool.h"
#include "scalars.h"

// Reads memory from front to back in shares, one after the other for each thread; returns a sum, so that nothing is left
// out. bytes: a multiple of 64.
uint64_t moe_read_memory(const void* memory, int64_t bytes, int32_t threads) {
  constexpr int64_t kShares = 64;
  uint64_t sums[kShares];
  const int64_t lines = bytes / 64;
  const auto read = [&](int64_t share) {
    const char* at = static_cast<const char*>(memory) + lines * share / kShares * 64;
    const char* end = static_cast<const char*>(memory) + lines * (share + 1) / kShares * 64;
    uint64_t sum[8] = {};
    for (; at < end; at += 64)
      for (int i = 0; i < 8; ++i) sum[i] += element_at<uint64_t>(at + 8 * i);
    sums[share] = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
  };
  parallel(threads, kShares, read);
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}
