// What a backbone does between its products: attention of packed rows over a slot cache, and root-mean-square norms.

#include <atomic>

#include "errors.h"
#include "matrix.h"
#include "pool.h"
#include "scalars.h"
#include "scratch.h"

namespace {

constexpr int64_t kHeadsAtOnce = 16;        // query heads of one task: bounds what it keeps beside the keys
constexpr int64_t kWorthSharing = 1 << 18;  // products of elements; below, waking a thread costs more than it does

// Threads worth waking for this much work.
int32_t shared_by(int32_t threads, int64_t work) {
  const int64_t useful = 1 + work / kWorthSharing;
  return useful < threads ? (int32_t)useful : threads;
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
  const int64_t cuts = (cache->groups + kHeadsAtOnce - 1) / kHeadsAtOnce, tasks = cache->heads * cuts;
  int64_t keys = 0;
  for (int64_t row = 0; row < n; ++row) {
    if (firsts[row] < 0 || ends[row] <= firsts[row])
      return fail(error, error_size, "row %lld: got keys %d to %d, want at least one", (long long)row, firsts[row],
                  ends[row]);
    keys += ends[row] - firsts[row];
  }
  std::atomic<bool> short_of_memory{false};
  const int64_t work = keys * cache->heads * cache->groups * (cache->key_size + cache->value_size);
  parallel(shared_by(threads, work), n * tasks, [&](int64_t task) {
    const int64_t place = task / tasks, head = task % tasks / cuts, cut = task % cuts;
    const AttentionRow row{static_cast<const char*>(query) + place * query_row_stride * element, query_head_stride,
                           static_cast<char*>(out) + place * out_row_stride * element, slots[place], firsts[place],
                           ends[place]};
    const int64_t first = cut * kHeadsAtOnce;
    const int64_t last = first + kHeadsAtOnce < cache->groups ? first + kHeadsAtOnce : cache->groups;
    Scratch& scratch = Scratch::of_this_thread();
    const int64_t floats = chosen.attention_scratch(*cache, last - first, row.end - row.first);
    if (!scratch.reserve(Scratch::size<float>(floats))) {
      short_of_memory = true;
      return;
    }
    const int64_t base = head * cache->groups;
    chosen.attend(*cache, row, head, base + first, base + last, scratch.take<float>(floats));
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
  char* to_keys = static_cast<char*>(const_cast<void*>(cache->keys));
  char* to_values = static_cast<char*>(const_cast<void*>(cache->values));
  for (int64_t row = 0; row < n; ++row) {
    const int64_t slot = slots[row], token = ends[row] - 1;
    for (int64_t head = 0; head < cache->heads; ++head) {
      const int64_t key = slot * cache->key_slot_stride + head * cache->key_head_stride + token * cache->key_token_stride;
      const int64_t value =
          slot * cache->value_slot_stride + head * cache->value_head_stride + token * cache->value_token_stride;
      memcpy(to_keys + key * element,
             static_cast<const char*>(keys) + (row * key_row_stride + head * key_head_stride) * element,
             static_cast<size_t>(cache->key_size * element));
      memcpy(to_values + value * element,
             static_cast<const char*>(values) + (row * value_row_stride + head * value_head_stride) * element,
             static_cast<size_t>(cache->value_size * element));
    }
  }
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
    }
  });
  const char* key = static_cast<const char*>(out) + queries * element;
  return moe_store(cache, key, width, size, key + keys * element, width, size, n, slots, ends, error, error_size);
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
  for (int64_t row = 0; row < n; ++row) {
    char* sum = static_cast<char*>(residual) + row * hidden * element;
    chosen.add(static_cast<const char*>(rows) + row * row_stride * element, sum, cache->dtype, hidden, sum);
  }
  return moe_rms_norm(variant, residual, cache->dtype, n, hidden, hidden, after.weight, after.epsilon,
                      after.round_first, normed, threads, error, error_size);
}
