// Softmax attention of rows over keys and values where they lie in a cache, and the norm of a row.
//
// Scores, softmax and sums are float32, in an order that depends on a row's own keys alone: its bits are the same whatever
// else is in the call. Keys are widened a block at a time, once for all query heads that share them, of all rows of a
// tile: rows of one slot, as a prompt's are.
#pragma once

#include <math.h>

#include <type_traits>

#include "activation.h"
#include "matrix.h"
#include "scalars.h"
#include "simd.h"

namespace MOE_VARIANT {

constexpr int64_t kKeyBlock = 32;  // keys widened at once: a block of 128 values each stays in the first-level cache
constexpr int kQueries = kAccumulators >= 24 ? 4 : 2;  // queries that meet a block at once, for whom it is loaded once

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

// What one query head of one row works on: the widened query, its scores, from token `first` on, and its result.
struct Query {
  float *query, *scores, *mixed;
  int64_t first;

  float* scores_at(int64_t token) const { return scores + (token - first); }
};

// Scores of `count` keys of a block, the first of which is `token`, for Q queries: scale * query . key. A score's bits
// don't depend on the key's place in the block.
template <int Q>
static inline void block_scores(const Query* queries, const float* keys, int64_t token, int64_t count, int64_t padded,
                                float scale) {
  const float* query[Q];
  float* scores[Q];
  for (int q = 0; q < Q; ++q) {
    query[q] = queries[q].query;
    scores[q] = queries[q].scores_at(token);
  }
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    const float* key = keys + j * padded;
    Vec sums[Q][4] = {};
    for (int64_t i = 0; i < padded; i += kLanes) {
      Vec four[4];
      for (int k = 0; k < 4; ++k) four[k] = load<Vec>(key + k * padded + i);
      for (int q = 0; q < Q; ++q) {
        const Vec x = load<Vec>(query[q] + i);
        for (int k = 0; k < 4; ++k) sums[q][k] = fma(x, four[k], sums[q][k]);
      }
    }
    for (int q = 0; q < Q; ++q) {
      across_four(sums[q][0], sums[q][1], sums[q][2], sums[q][3], scores[q] + j);
      for (int k = 0; k < 4; ++k) scores[q][j + k] *= scale;
    }
  }
  for (; j < count; ++j) {
    for (int q = 0; q < Q; ++q) {
      Vec sum{};
      for (int64_t i = 0; i < padded; i += kLanes)
        sum = fma(load<Vec>(query[q] + i), load<Vec>(keys + j * padded + i), sum);
      float four[4];
      across_four(sum, Vec{}, Vec{}, Vec{}, four);
      scores[q][j] = four[0] * scale;
    }
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

// mixed[i .. i + Width vectors) += sum over a block's keys of share * value, keys in order, for Q queries.
template <int Q, int Width>
static inline void mix(const Query* queries, const float* values, int64_t token, int64_t count, int64_t padded,
                       int64_t i) {
  Vec sums[Q][Width];
  const float* shares[Q];
  for (int q = 0; q < Q; ++q) {
    shares[q] = queries[q].scores_at(token);
    for (int v = 0; v < Width; ++v) sums[q][v] = load<Vec>(queries[q].mixed + i + v * kLanes);
  }
  for (int64_t j = 0; j < count; ++j) {
    Vec value[Width];
    for (int v = 0; v < Width; ++v) value[v] = load<Vec>(values + j * padded + i + v * kLanes);
    for (int q = 0; q < Q; ++q) {
      const Vec share = broadcast(shares[q][j]);
      for (int v = 0; v < Width; ++v) sums[q][v] = fma(share, value[v], sums[q][v]);
    }
  }
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < Width; ++v) store(queries[q].mixed + i + v * kLanes, sums[q][v]);
}

template <int Q>
static inline void mix_block(const Query* queries, const float* values, int64_t token, int64_t count, int64_t padded) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= padded; i += 4 * kLanes) mix<Q, 4>(queries, values, token, count, padded, i);
  for (; i < padded; i += kLanes) mix<Q, 1>(queries, values, token, count, padded, i);
}

// Room for a tile's queries: their floats, those of a block, and the queries themselves.
static int64_t attention_scratch(const moe_cache& cache, int64_t queries, int64_t keys) {
  const int64_t key = whole_vectors(cache.key_size), value = whole_vectors(cache.value_size);
  return queries * (key + value + whole_vectors(keys) + (int64_t)(sizeof(Query) / sizeof(float))) +
         kKeyBlock * (key > value ? key : value);
}

// Calls widen(token, count) for the tile's keys, a block after the other, and after each of them
// meet(query, queries, token, count, place) for neighbouring queries that see the same of its keys; place: in the block.
template <class Widen, class Meet>
static inline void walk(const AttentionTile& tile, int64_t heads, const Widen& widen, const Meet& meet) {
  int64_t begin = tile.rows[0].first, end = tile.rows[0].end;
  for (int64_t r = 1; r < tile.count; ++r) {
    if (tile.rows[r].first < begin) begin = tile.rows[r].first;
    if (tile.rows[r].end > end) end = tile.rows[r].end;
  }
  for (int64_t at = begin; at < end; at += kKeyBlock) {
    const int64_t stop = end - at < kKeyBlock ? end : at + kKeyBlock;
    const auto low = [&](int64_t r) { return tile.rows[r].first > at ? tile.rows[r].first : at; };
    const auto high = [&](int64_t r) { return tile.rows[r].end < stop ? tile.rows[r].end : stop; };
    widen(at, stop - at);
    for (int64_t r = 0, next; r < tile.count; r = next) {
      for (next = r + 1; next < tile.count && low(next) == low(r) && high(next) == high(r);) ++next;
      if (low(r) < high(r)) meet(r * heads, (next - r) * heads, low(r), high(r) - low(r), low(r) - at);
    }
  }
}

// Calls some(number, query) for queries first to first + count - 1, as many at once as there are registers for.
template <class Some>
static inline void together(int64_t first, int64_t count, const Some& some) {
  const int64_t last = first + count;
  for (; first + kQueries <= last; first += kQueries) some(std::integral_constant<int, kQueries>{}, first);
  for (; first + 2 <= last; first += 2) some(std::integral_constant<int, 2>{}, first);
  for (; first < last; ++first) some(std::integral_constant<int, 1>{}, first);
}

// Query heads first to last (counted over all) of a tile's rows, all sharing key head `head`.
template <class Element>
static void attend_of(const moe_cache& cache, const AttentionTile& tile, int64_t head, int64_t first, int64_t last,
                      float* scratch) {
  typedef typename Element::Bits Bits;
  const int64_t heads = last - first, count = tile.count * heads;
  const int64_t key_size = whole_vectors(cache.key_size), value_size = whole_vectors(cache.value_size);
  float* block = scratch;
  Query* queries = (Query*)(block + kKeyBlock * (key_size > value_size ? key_size : value_size));
  float* room = (float*)(queries + count);
  for (int64_t q = 0; q < count; ++q) {
    const AttentionRow& row = tile.rows[q / heads];
    queries[q] = {room, room + key_size + value_size, room + key_size, row.first};
    room = queries[q].scores + whole_vectors(row.end - row.first);
    widen_row<Element>((const Bits*)row.query + (first + q % heads) * row.query_head_stride, cache.key_size, key_size,
                       queries[q].query);
    for (int64_t i = 0; i < value_size; ++i) queries[q].mixed[i] = 0;
  }
  const auto widen = [&](const void* slab, int64_t slot_stride, int64_t head_stride, int64_t token_stride, int64_t size,
                         int64_t padded) {
    const Bits* from = (const Bits*)slab + tile.slot * slot_stride + head * head_stride;
    return [=](int64_t token, int64_t many) {
      for (int64_t j = 0; j < many; ++j)
        widen_row<Element>(from + (token + j) * token_stride, size, padded, block + j * padded);
    };
  };
  walk(tile, heads,
       widen(cache.keys, cache.key_slot_stride, cache.key_head_stride, cache.key_token_stride, cache.key_size, key_size),
       [&](int64_t from, int64_t some, int64_t token, int64_t many, int64_t place) {
         together(from, some, [&](auto number, int64_t q) {
           block_scores<number()>(queries + q, block + place * key_size, token, many, key_size, cache.scale);
         });
       });
  for (int64_t q = 0; q < count; ++q) {
    const AttentionRow& row = tile.rows[q / heads];
    const float* sink = cache.sinks ? cache.sinks + first + q % heads : nullptr;
    queries[q].query[0] = soften(queries[q].scores, row.end - row.first, sink);  // the query is not needed any more
  }
  walk(tile, heads,
       widen(cache.values, cache.value_slot_stride, cache.value_head_stride, cache.value_token_stride, cache.value_size,
             value_size),
       [&](int64_t from, int64_t some, int64_t token, int64_t many, int64_t place) {
         together(from, some, [&](auto number, int64_t q) {
           mix_block<number()>(queries + q, block + place * value_size, token, many, value_size);
         });
       });
  for (int64_t q = 0; q < count; ++q) {
    Bits* out = (Bits*)tile.rows[q / heads].out + (first + q % heads) * cache.value_size;
    const float total = queries[q].query[0];
    for (int64_t i = 0; i < cache.value_size; ++i) out[i] = Element::narrow(queries[q].mixed[i] / total);
  }
}

static void attend(const moe_cache& cache, const AttentionTile& tile, int64_t head, int64_t first, int64_t last,
                   float* scratch) {
  if (cache.dtype == MOE_FLOAT32) return attend_of<Float32>(cache, tile, head, first, last, scratch);
  if (cache.dtype == MOE_BFLOAT16) return attend_of<BFloat16>(cache, tile, head, first, last, scratch);
  attend_of<Float16>(cache, tile, head, first, last, scratch);
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
