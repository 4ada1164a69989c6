// Softmax attention of one row's heads over keys and values where they lie in a cache, and the norm of a row.
//
// Scores, softmax and sums are float32, in an order that depends on the keys' number alone: a row's bits are the same
// whatever else is in the call. Keys are widened a block at a time, once for all query heads that share them.
#pragma once

#include <math.h>

#include "activation.h"
#include "matrix.h"
#include "scalars.h"
#include "simd.h"

namespace MOE_VARIANT {

constexpr int64_t kKeyBlock = 32;  // keys widened at once: a block of 128 values each stays in the first-level cache

static inline int64_t whole_vectors(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// The sum of the lanes, halves added to halves.
static inline float across(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
#endif
}

// The sums of four vectors' lanes, to four neighbours.
static inline void across_four(Vec a, Vec b, Vec c, Vec d, float* to) {
#if defined(__AVX512F__)
  const auto halves = [](Vec v) {
    return _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
  };
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(halves(a), halves(b)), _mm256_hadd_ps(halves(c), halves(d)));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
#elif defined(__AVX2__)
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps((__m256)a, (__m256)b), _mm256_hadd_ps((__m256)c, (__m256)d));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
#else
  to[0] = across(a);
  to[1] = across(b);
  to[2] = across(c);
  to[3] = across(d);
#endif
}

// count elements to float, filled up with zeros to whole vectors.
template <class Element>
static inline void widen_row(const typename Element::Bits* from, int64_t count, int64_t padded, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = Element::widen(from[i]);
  for (int64_t i = count; i < padded; ++i) to[i] = 0;
}

// scores[j] = scale * query . keys[j] for `count` keys of a block.
static inline void block_scores(const float* query, const float* keys, int64_t count, int64_t padded, float scale,
                                float* scores) {
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    const float* key = keys + j * padded;
    Vec a{}, b{}, c{}, d{};
    for (int64_t i = 0; i < padded; i += kLanes) {
      const Vec q = load<Vec>(query + i);
      a = fma(q, load<Vec>(key + i), a);
      b = fma(q, load<Vec>(key + padded + i), b);
      c = fma(q, load<Vec>(key + 2 * padded + i), c);
      d = fma(q, load<Vec>(key + 3 * padded + i), d);
    }
    across_four(a, b, c, d, scores + j);
    for (int i = 0; i < 4; ++i) scores[j + i] *= scale;
  }
  for (; j < count; ++j) {
    Vec a{};
    for (int64_t i = 0; i < padded; i += kLanes) a = fma(load<Vec>(query + i), load<Vec>(keys + j * padded + i), a);
    scores[j] = across(a) * scale;
  }
}

// Scores to e^(score - greatest), in place; gives their sum, the sink's share included. scores: room for whole vectors.
static inline float soften(float* scores, int64_t count, const float* sink) {
  const int64_t padded = whole_vectors(count);
  for (int64_t j = count; j < padded; ++j) scores[j] = -INFINITY;
  Vec most = broadcast(-INFINITY), wrong{};
  for (int64_t j = 0; j < padded; j += kLanes) {
    const Vec score = load<Vec>(scores + j);
    most = select(score > most, score, most);
    wrong = wrong + select(score == score, Vec{}, score);  // a NaN stays one
  }
  float greatest = sink ? *sink : -INFINITY;
  for (int lane = 0; lane < kLanes; ++lane) greatest = most[lane] > greatest ? most[lane] : greatest;
  greatest += across(wrong);
  Vec sum{};
  for (int64_t j = 0; j < padded; j += kLanes) {
    Vec share = exponential(load<Vec>(scores + j) - broadcast(greatest));
    if (j + kLanes > count)
      for (int lane = 0; lane < kLanes; ++lane)
        if (j + lane >= count) share[lane] = 0;
    store(scores + j, share);
    sum = sum + share;
  }
  return across(sum) + (sink ? exponential(broadcast(*sink - greatest))[0] : 0.0f);
}

// mixed[head] += sum over a block's keys of shares[head][key] * values[key], keys in order; `Heads` heads, `Width` vectors.
template <int Heads, int Width>
static inline void mix(const float* shares, int64_t share_stride, const float* values, int64_t count, int64_t padded,
                       float* mixed) {
  Vec sums[Heads][Width];
  for (int h = 0; h < Heads; ++h)
    for (int i = 0; i < Width; ++i) sums[h][i] = load<Vec>(mixed + h * padded + i * kLanes);
  for (int64_t j = 0; j < count; ++j) {
    Vec value[Width];
    for (int i = 0; i < Width; ++i) value[i] = load<Vec>(values + j * padded + i * kLanes);
    for (int h = 0; h < Heads; ++h) {
      const Vec share = broadcast(shares[h * share_stride + j]);
      for (int i = 0; i < Width; ++i) sums[h][i] = fma(share, value[i], sums[h][i]);
    }
  }
  for (int h = 0; h < Heads; ++h)
    for (int i = 0; i < Width; ++i) store(mixed + h * padded + i * kLanes, sums[h][i]);
}

template <int Heads>
static inline void mix_block(const float* shares, int64_t share_stride, const float* values, int64_t count,
                             int64_t padded, float* mixed) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= padded; i += 4 * kLanes) mix<Heads, 4>(shares, share_stride, values + i, count, padded, mixed + i);
  for (; i < padded; i += kLanes) mix<Heads, 1>(shares, share_stride, values + i, count, padded, mixed + i);
}

static int64_t attention_scratch(const moe_cache& cache, int64_t heads, int64_t keys) {
  const int64_t key = whole_vectors(cache.key_size), value = whole_vectors(cache.value_size);
  return heads * (key + value + whole_vectors(keys)) + kKeyBlock * (key > value ? key : value);
}

// Query heads first to last (counted over all) of one row, all sharing key head `head`.
template <class Element>
static void attend_of(const moe_cache& cache, const AttentionRow& row, int64_t head, int64_t first, int64_t last,
                      float* scratch) {
  typedef typename Element::Bits Bits;
  const int64_t heads = last - first, keys = row.end - row.first, row_keys = whole_vectors(keys);
  const int64_t key_size = whole_vectors(cache.key_size), value_size = whole_vectors(cache.value_size);
  float* query = scratch;
  float* mixed = query + heads * key_size;
  float* scores = mixed + heads * value_size;
  float* block = scores + heads * row_keys;
  for (int64_t h = 0; h < heads; ++h)
    widen_row<Element>((const Bits*)row.query + (first + h) * row.query_head_stride, cache.key_size, key_size,
                       query + h * key_size);
  const Bits* key = (const Bits*)cache.keys + row.slot * cache.key_slot_stride + head * cache.key_head_stride +
                    row.first * cache.key_token_stride;
  for (int64_t at = 0; at < keys; at += kKeyBlock) {
    const int64_t count = keys - at < kKeyBlock ? keys - at : kKeyBlock;
    for (int64_t j = 0; j < count; ++j)
      widen_row<Element>(key + (at + j) * cache.key_token_stride, cache.key_size, key_size, block + j * key_size);
    for (int64_t h = 0; h < heads; ++h)
      block_scores(query + h * key_size, block, count, key_size, cache.scale, scores + h * row_keys + at);
  }
  for (int64_t i = 0; i < heads * value_size; ++i) mixed[i] = 0;
  float* total = query;  // the queries are not needed any more; a head has at least one vector
  for (int64_t h = 0; h < heads; ++h)
    total[h] = soften(scores + h * row_keys, keys, cache.sinks ? cache.sinks + first + h : nullptr);
  const Bits* value = (const Bits*)cache.values + row.slot * cache.value_slot_stride + head * cache.value_head_stride +
                      row.first * cache.value_token_stride;
  for (int64_t at = 0; at < keys; at += kKeyBlock) {
    const int64_t count = keys - at < kKeyBlock ? keys - at : kKeyBlock;
    for (int64_t j = 0; j < count; ++j)
      widen_row<Element>(value + (at + j) * cache.value_token_stride, cache.value_size, value_size,
                         block + j * value_size);
    int64_t h = 0;
    for (; h + 2 <= heads; h += 2)
      mix_block<2>(scores + h * row_keys + at, row_keys, block, count, value_size, mixed + h * value_size);
    if (h < heads) mix_block<1>(scores + h * row_keys + at, row_keys, block, count, value_size, mixed + h * value_size);
  }
  for (int64_t h = 0; h < heads; ++h) {
    Bits* out = (Bits*)row.out + (first + h) * cache.value_size;
    for (int64_t i = 0; i < cache.value_size; ++i) out[i] = Element::narrow(mixed[h * value_size + i] / total[h]);
  }
}

static void attend(const moe_cache& cache, const AttentionRow& row, int64_t head, int64_t first, int64_t last,
                   float* scratch) {
  if (cache.dtype == MOE_FLOAT32) return attend_of<Float32>(cache, row, head, first, last, scratch);
  if (cache.dtype == MOE_BFLOAT16) return attend_of<BFloat16>(cache, row, head, first, last, scratch);
  attend_of<Float16>(cache, row, head, first, last, scratch);
}

// One row over its root mean square, times weight. Rounded to the row's dtype before the weight too if round_first.
template <class Element>
static void rms_norm_of(const void* from, const float* weight, int64_t width, float epsilon, bool round_first,
                        void* to) {
  typedef typename Element::Bits Bits;
  const Bits* row = (const Bits*)from;
  Vec sums{};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    float lanes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = Element::widen(row[i + lane]);
    const Vec x = load<Vec>(lanes);
    sums = fma(x, x, sums);
  }
  float sum = across(sums);
  for (; i < width; ++i) sum += Element::widen(row[i]) * Element::widen(row[i]);
  const float factor = 1.0f / sqrtf(sum / (float)width + epsilon);
  for (i = 0; i < width; ++i) {
    float x = Element::widen(row[i]) * factor;
    if (round_first) x = Element::widen(Element::narrow(x));
    ((Bits*)to)[i] = Element::narrow(x * weight[i]);
  }
}

static void rms_norm(const void* from, int32_t dtype, const float* weight, int64_t width, float epsilon,
                     bool round_first, void* to) {
  if (dtype == MOE_FLOAT32) return rms_norm_of<Float32>(from, weight, width, epsilon, round_first, to);
  if (dtype == MOE_BFLOAT16) return rms_norm_of<BFloat16>(from, weight, width, epsilon, round_first, to);
  rms_norm_of<Float16>(from, weight, width, epsilon, round_first, to);
}

template <class Element>
static void add_of(const typename Element::Bits* a, const typename Element::Bits* b, int64_t count,
                   typename Element::Bits* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = Element::narrow(Element::widen(a[i]) + Element::widen(b[i]));
}

static void add(const void* a, const void* b, int32_t dtype, int64_t count, void* out) {
  if (dtype == MOE_FLOAT32) return add_of<Float32>((const float*)a, (const float*)b, count, (float*)out);
  if (dtype == MOE_BFLOAT16) return add_of<BFloat16>((const uint16_t*)a, (const uint16_t*)b, count, (uint16_t*)out);
  add_of<Float16>((const uint16_t*)a, (const uint16_t*)b, count, (uint16_t*)out);
}

// Rounded where torch's operators round: two products, then their sum.
template <class Element>
static void rotate_of(typename Element::Bits* head, const typename Element::Bits* cos,
                      const typename Element::Bits* sin, int64_t half, int64_t second) {
  const auto rounded = [](float x) { return Element::widen(Element::narrow(x)); };
  for (int64_t i = 0; i < half; ++i) {
    const float a = Element::widen(head[i]), b = Element::widen(head[i + half]);
    const float one = rounded(a * Element::widen(cos[i])) + rounded(-b * Element::widen(sin[i]));
    const float two = rounded(b * Element::widen(cos[second + i])) + rounded(a * Element::widen(sin[second + i]));
    head[i] = Element::narrow(one);
    head[i + half] = Element::narrow(two);
  }
}

static void rotate(void* head, int32_t dtype, const void* cos, const void* sin, int64_t half, int64_t second) {
  if (dtype == MOE_FLOAT32)
    return rotate_of<Float32>((float*)head, (const float*)cos, (const float*)sin, half, second);
  if (dtype == MOE_BFLOAT16)
    return rotate_of<BFloat16>((uint16_t*)head, (const uint16_t*)cos, (const uint16_t*)sin, half, second);
  rotate_of<Float16>((uint16_t*)head, (const uint16_t*)cos, (const uint16_t*)sin, half, second);
}

}  // namespace MOE_VARIANT
