#include "weight_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <new>

namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = (size_t)2 << 20;
constexpr size_t kBlock = (size_t)32 << 20;  // address space; only what is used of it takes memory

// Smaller ones gain nothing. Under AddressSanitizer every weight stays apart, so that reading past one is seen.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kLeast = SIZE_MAX;
#else
constexpr size_t kLeast = 64 << 10;
#endif

size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

class Block {
 public:
  explicit Block(size_t bytes) : size_(rounded_up(bytes, kHugePage)) {
    mapped_size_ = size_ + kHugePage;
    mapped_ = mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    start_ = reinterpret_cast<char*>(rounded_up(reinterpret_cast<size_t>(mapped_), kHugePage));
#ifdef MADV_HUGEPAGE
    madvise(start_, size_, MADV_HUGEPAGE);  // advice: a system without huge pages serves from small ones
#endif
  }
  ~Block() { munmap(mapped_, mapped_size_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  size_t left() const { return size_ - used_; }

  char* take(size_t bytes) {
    char* part = start_ + used_;
    used_ += bytes;
    return part;
  }

  // The pages that lie wholly in a part.
  static void give_back(char* part, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t first = rounded_up(reinterpret_cast<size_t>(part), page);
    const size_t last = (reinterpret_cast<size_t>(part) + bytes) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }

 private:
  size_t size_, used_ = 0, mapped_size_;
  void* mapped_;
  char* start_;
};

// The block that still has room lives as long as a weight in it.
std::mutex taking;
std::weak_ptr<Block> filling;

// A child that is forked while another thread takes memory would find it taken for ever.
[[maybe_unused]] const int forks_between = pthread_atfork([] { taking.lock(); }, [] { taking.unlock(); }, [] { taking.unlock(); });

std::shared_ptr<char> part_of_block(size_t bytes) {
  std::lock_guard<std::mutex> lock(taking);
  std::shared_ptr<Block> block = filling.lock();
  if (!block || block->left() < bytes) {
    block = std::make_shared<Block>(bytes > kBlock ? bytes : kBlock);
    filling = block;
  }
  char* part = block->take(bytes);
  return std::shared_ptr<char>(part, [block, bytes](char* mine) { Block::give_back(mine, bytes); });
}

}  // namespace

std::shared_ptr<char> weight_memory(int64_t bytes) {
  const size_t size = rounded_up((size_t)(bytes > 0 ? bytes : 1), kLine);
  try {
    if (size >= kLeast) return part_of_block(size);
    char* part = static_cast<char*>(aligned_alloc(kLine, size));
    return part ? std::shared_ptr<char>(part, free) : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
