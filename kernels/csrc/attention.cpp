// What a backbone does between its products: attention of packed rows over a slot cache, norms and sums.

#include <atomic>
#include <new>
#include <vector>

#include "errors.h"
#include "matrix.h"
#include "pool.h"
#include "scalars.h"
#include "scratch.h"

namespace {

constexpr int64_t kHeadsAtOnce = 16;        // query heads of one task: bounds what it keeps beside the keys
constexpr int64_t kRowsAtOnce = 16;         // rows of one slot in one task, for whom keys are widened once, as long as
constexpr int64_t kFloatsAtOnce = 1 << 17;  // what the task keeps is about that: half of a second-level cache of 1 MiB
constexpr int64_t kWorthSharing = 1 << 18;  // products of elements; below, waking a thread costs more than it does

// Threads worth waking for this much work.
int32_t shared_by(int32_t threads, int64_t work) {
  const int64_t useful = 1 + work / kWorthSharing;
  return useful < threads ? (int32_t)useful : threads;
}

// A row's keys and values, strides in elements, to a token of a slot.
void store_row(const moe_cache& cache, const char* keys, int64_t key_head_stride, const char* values,
               int64_t value_head_stride, int64_t slot, int64_t token) {
  const int64_t element = size_of(cache.dtype);
  char* to_keys = static_cast<char*>(const_cast<void*>(cache.keys));
  char* to_values = static_cast<char*>(const_cast<void*>(cache.values));
  for (int64_t head = 0; head < cache.heads; ++head) {
    const int64_t key = slot * cache.key_slot_stride + head * cache.key_head_stride + token * cache.key_token_stride;
    const int64_t value =
        slot * cache.value_slot_stride + head * cache.value_head_stride + token * cache.value_token_stride;
    memcpy(to_keys + key * element, keys + head * key_head_stride * element, (size_t)(cache.key_size * element));
    memcpy(to_values + value * element, values + head * value_head_stride * element,
           (size_t)(cache.value_size * element));
  }
}

// Neighbouring rows of one slot: `count` from `row` on, with at most `keys` keys each.
struct Tile {
  int64_t row, count, keys;
};

// Cuts rows into tiles. heads: query heads of a task. False when memory is short.
bool cut(int64_t n, const int32_t* slots, const int32_t* firsts, const int32_t* ends, int64_t heads,
         std::vector<Tile>& tiles) {
  try {
    for (int64_t row = 0; row < n; ++row) {
      const int64_t keys = ends[row] - firsts[row];
      if (!tiles.empty() && slots[row] == slots[row - 1]) {
        Tile& last = tiles.back();
        const int64_t most = keys > last.keys ? keys : last.keys;
        if (last.count < kRowsAtOnce && (last.count + 1) * heads * most <= kFloatsAtOnce) {
          last = {last.row, last.count + 1, most};
          continue;
        }
      }
      tiles.push_back({row, 1, keys});
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace

int32_t moe_attend(int32_t variant, const moe_cache* cache, const void* query, int64_t query_row_stride,
                   int64_t query_head_stride, int64_t n, const int32_t* slots, const int32_t* firsts,
                   const int32_t* ends, void* out, int64_t out_row_stride, int32_t threads, char* error,
                   int64_t error_size) {
  if (variant < 0 || variant >= variant_count())
    return fail(error, error_size, "variant: got %d, this processor runs 0 to %d", variant, variant_count() - 1);
  if (!is_float(cache->dtype))
    return fail(error, error_size, "cache: got dtype %d, want float32, bfloat16 or float16", cache->dtype);
  const Variant& chosen = variant_at(variant);
  const int64_t element = size_of(cache->dtype);
  int64_t keys = 0;
  for (int64_t row = 0; row < n; ++row) {
    if (firsts[row] < 0 || ends[row] <= firsts[row])
      return fail(error, error_size, "row %lld: got keys %d to %d, want at least one", (long long)row, firsts[row],
                  ends[row]);
    keys += ends[row] - firsts[row];
  }
  const int64_t cuts = (cache->groups + kHeadsAtOnce - 1) / kHeadsAtOnce, tasks = cache->heads * cuts;
  const int64_t heads = cache->groups < kHeadsAtOnce ? cache->groups : kHeadsAtOnce;
  std::vector<Tile> tiles;
  if (!cut(n, slots, firsts, ends, heads, tiles)) return fail(error, error_size, "not enough memory for %lld rows", (long long)n);
  std::atomic<bool> short_of_memory{false};
  const int64_t work = keys * cache->heads * cache->groups * (cache->key_size + cache->value_size);
  parallel(shared_by(threads, work), (int64_t)tiles.size() * tasks, [&](int64_t task) {
    // The last tiles of a prompt have most keys: they come first, so that no thread ends with them alone.
    const Tile& tile = tiles[tiles.size() - 1 - (size_t)(task / tasks)];
    const int64_t head = task % tasks / cuts, begin = task % cuts * kHeadsAtOnce;
    const int64_t end = begin + kHeadsAtOnce < cache->groups ? begin + kHeadsAtOnce : cache->groups;
    AttentionRow rows[kRowsAtOnce];
    for (int64_t i = 0; i < tile.count; ++i) {
      const int64_t row = tile.row + i;
      rows[i] = {static_cast<const char*>(query) + row * query_row_stride * element, query_head_stride,
                 static_cast<char*>(out) + row * out_row_stride * element, firsts[row], ends[row]};
    }
    Scratch& scratch = Scratch::of_this_thread();
    const int64_t floats = chosen.attention_scratch(*cache, tile.count * (end - begin), tile.keys);
    if (!scratch.reserve(Scratch::size<float>(floats))) {
      short_of_memory = true;
      return;
    }
    const int64_t base = head * cache->groups;
    chosen.attend(*cache, {rows, tile.count, slots[tile.row]}, head, base + begin, base + end,
                  scratch.take<float>(floats));
  });
  if (short_of_memory) return fail(error, error_size, "not enough memory for attention over %lld keys", (long long)keys);
  return 0;
}

int32_t moe_store(const moe_cache* cache, const void* keys, int64_t key_row_stride, int64_t key_head_stride,
                  const void* values, int64_t value_row_stride, int64_t value_head_stride, int64_t n,
                  const int32_t* slots, const int32_t* ends, char* error, int64_t error_size) {
  if (!is_float(cache->dtype))
    return fail(error, error_size, "cache: got dtype %d, want float32, bfloat16 or float16", cache->dtype);
  const int64_t element = size_of(cache->dtype);
  for (int64_t row = 0; row < n; ++row)
    store_row(*cache, static_cast<const char*>(keys) + row * key_row_stride * element, key_head_stride,
              static_cast<const char*>(values) + row * value_row_stride * element, value_head_stride, slots[row],
              ends[row] - 1);
  return 0;
}

int32_t moe_project(int32_t variant, const moe_projection* projection, const moe_cache* cache, const moe_rotary* rotary,
                    const void* rows, int64_t row_stride, int64_t n, const int32_t* slots, const int32_t* ends,
                    void* out, int32_t threads, char* error, int64_t error_size) {
  if (variant < 0 || variant >= variant_count())
    return fail(error, error_size, "variant: got %d, this processor runs 0 to %d", variant, variant_count() - 1);
  const Variant& chosen = variant_at(variant);
  const moe_projection& way = *projection;
  const int64_t element = size_of(cache->dtype), size = way.head_size;
  const int64_t queries = way.query_heads * size, keys = way.key_heads * size, width = queries + 2 * keys;
  if (2 * rotary->half > size)
    return fail(error, error_size, "rotary: got %lld angles for heads of %lld", (long long)rotary->half, (long long)size);
  if (moe_linear_run(way.qkv, rows, cache->dtype, n, row_stride, out, cache->dtype, width, threads, error, error_size))
    return 1;
  const auto norm = [&](char* at, int64_t heads, const float* weight) {
    if (!weight) return;
    const int64_t count = way.whole_norm ? 1 : heads, each = way.whole_norm ? heads * size : size;
    for (int64_t i = 0; i < count; ++i) {
      char* row = at + i * each * element;
      chosen.rms_norm(row, cache->dtype, weight, each, way.epsilon, way.round_first != 0, row);
    }
  };
  const int32_t used = shared_by(threads, n * width * 8);
  parallel(used, used, [&](int64_t share) {
    for (int64_t row = n * share / used; row < n * (share + 1) / used; ++row) {
      char* at = static_cast<char*>(out) + row * width * element;
      norm(at, way.query_heads, way.query_norm);
      norm(at + queries * element, way.key_heads, way.key_norm);
      const char* cos = static_cast<const char*>(rotary->cos) + row * rotary->row_stride * element;
      const char* sin = static_cast<const char*>(rotary->sin) + row * rotary->row_stride * element;
      for (int64_t head = 0; head < way.query_heads + way.key_heads; ++head)
        chosen.rotate(at + head * size * element, cache->dtype, cos, sin, rotary->half, rotary->second);
      const char* key = at + queries * element;
      store_row(*cache, key, size, key + keys * element, size, slots[row], ends[row] - 1);
    }
  });
  return 0;
}

int32_t moe_rms_norm(int32_t variant, const void* rows, int32_t dtype, int64_t n, int64_t row_stride, int64_t width,
                     const float* weight, float epsilon, int32_t round_first, void* out, int32_t threads, char* error,
                     int64_t error_size) {
  if (variant < 0 || variant >= variant_count())
    return fail(error, error_size, "variant: got %d, this processor runs 0 to %d", variant, variant_count() - 1);
  if (!is_float(dtype)) return fail(error, error_size, "rows: got dtype %d, want float32, bfloat16 or float16", dtype);
  const Variant& chosen = variant_at(variant);
  const int64_t element = size_of(dtype);
  const int32_t used = shared_by(threads, n * width);
  parallel(used, used, [&](int64_t share) {
    for (int64_t row = n * share / used; row < n * (share + 1) / used; ++row)
      chosen.rms_norm(static_cast<const char*>(rows) + row * row_stride * element, dtype, weight, width, epsilon,
                      round_first != 0, static_cast<char*>(out) + row * width * element);
  });
  return 0;
}

int32_t moe_layer_attend(int32_t variant, const moe_layer* layer, const moe_cache* cache, const moe_rotary* rotary,
                         const void* rows, int64_t row_stride, int64_t n, const int32_t* slots, const int32_t* firsts,
                         const int32_t* ends, void* projected, void* mixed, void* residual, void* normed,
                         int32_t threads, char* error, int64_t error_size) {
  const moe_projection& way = layer->projection;
  const int64_t hidden = layer->hidden, size = way.head_size, element = size_of(cache->dtype);
  const int64_t width = (way.query_heads + 2 * way.key_heads) * size, heads = way.query_heads * cache->value_size;
  const moe_norm &before = layer->before, &after = layer->after;
  const StayAwake awake(threads);
  if (moe_rms_norm(variant, rows, cache->dtype, n, row_stride, hidden, before.weight, before.epsilon,
                   before.round_first, normed, threads, error, error_size) ||
      moe_project(variant, &way, cache, rotary, normed, hidden, n, slots, ends, projected, threads, error,
                  error_size) ||
      moe_attend(variant, cache, projected, width, size, n, slots, firsts, ends, mixed, heads, threads, error,
                 error_size) ||
      moe_linear_run(layer->output, mixed, cache->dtype, n, heads, residual, cache->dtype, hidden, threads, error,
                     error_size))
    return 1;
  const Variant& chosen = variant_at(variant);
  const int32_t used = shared_by(threads, 2 * n * hidden);
  parallel(used, used, [&](int64_t share) {
    for (int64_t row = n * share / used; row < n * (share + 1) / used; ++row) {
      char* sum = static_cast<char*>(residual) + row * hidden * element;
      chosen.add(static_cast<const char*>(rows) + row * row_stride * element, sum, cache->dtype, hidden, sum);
      chosen.rms_norm(sum, cache->dtype, after.weight, hidden, after.epsilon, after.round_first != 0,
                      static_cast<char*>(normed) + row * hidden * element);
    }
  });
  return 0;
}

int32_t moe_add(int32_t variant, const void* a, const void* b, int32_t dtype, int64_t n, int64_t width, void* out,
                int32_t threads, char* error, int64_t error_size) {
  if (variant < 0 || variant >= variant_count())
    return fail(error, error_size, "variant: got %d, this processor runs 0 to %d", variant, variant_count() - 1);
  if (!is_float(dtype)) return fail(error, error_size, "rows: got dtype %d, want float32, bfloat16 or float16", dtype);
  const int64_t bytes = width * size_of(dtype);
  const int32_t used = shared_by(threads, n * width);
  parallel(used, used, [&](int64_t share) {
    const int64_t first = n * share / used, rows = n * (share + 1) / used - first;
    variant_at(variant).add(static_cast<const char*>(a) + first * bytes, static_cast<const char*>(b) + first * bytes,
                            dtype, rows * width, static_cast<char*>(out) + first * bytes);
  });
  return 0;
}
