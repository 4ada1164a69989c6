// Rows into tiles (matrix.h): copied for products as floats, as pairs or rounded to bytes, with the facts that go with them.
//
// Rounding goes a vector at a time, as one input after the other costs more than the products that it makes cheaper.
// A row's facts are summed in one order, whatever the tile it lies in: they are as batch-invariant as the products.
#pragma once

#include <math.h>

#include <type_traits>

#include "panels.h"
#include "scalars.h"

namespace MOE_VARIANT {

// Where a row lies in its tile: word w of it at words[w * height].
struct Place {
  uint32_t* words;
  int64_t height;
};

// kLanes elements at any address, as float.
template <class Element>
static inline Vec widened(const char* from);

template <>
inline Vec widened<Float32>(const char* from) {
  return load<Vec>(from);
}

template <>
inline Vec widened<BFloat16>(const char* from) {
  typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
  return (Vec)(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

template <>
inline Vec widened<Float16>(const char* from) {
  uint16_t bits[kLanes];
  memcpy(bits, from, sizeof bits);
  return widen_halves(bits);
}

// A source of values: at(k) is input k as float, vector(k) inputs k to k + kLanes - 1.
template <class Element>
struct StoredRow {
  static constexpr int64_t kSize = sizeof(typename Element::Bits);
  const char* row;
  inline float at(int64_t k) const { return Element::widen(element_at<typename Element::Bits>(row + k * kSize)); }
  inline Vec vector(int64_t k) const { return widened<Element>(row + k * kSize); }
};

struct FloatRow {
  const float* row;
  inline float at(int64_t k) const { return row[k]; }
  inline Vec vector(int64_t k) const { return load<Vec>(row + k); }
};

// Inputs from k on, fewer than kLanes, and zeros.
template <class Row>
static inline Vec last_vector(const Row& row, int64_t k, int64_t in) {
  float lanes[kLanes] = {};
  for (int i = 0; k + i < in; ++i) lanes[i] = row.at(k + i);
  return load<Vec>(lanes);
}

template <class Row>
static float sum_of(const Row& row, int64_t first, int64_t last) {
  Vec total = {};
  int64_t k = first;
  for (; k + kLanes <= last; k += kLanes) total += row.vector(k);
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += total[i];
  for (; k < last; ++k) sum += row.at(k);
  return sum;
}

template <class Row>
static void lay_floats(const Row& row, int64_t in, Place to) {
  if (to.height == 1) {  // the common case, as a loop over neighbours
    for (int64_t k = 0; k < in; ++k) to.words[k] = bits_of(row.at(k));
  } else {
    for (int64_t k = 0; k < in; ++k) to.words[k * to.height] = bits_of(row.at(k));
  }
  for (int64_t k = in; k < tile_width(in); ++k) to.words[k * to.height] = 0;
}

// Of rows that are bfloat16's values: the upper half of a float is all there is.
template <class Row>
static void lay_pairs(const Row& row, int64_t in, Place to) {
  const int64_t whole = in / 2;
  if (to.height == 1) {
    for (int64_t s = 0; s < whole; ++s) to.words[s] = bits_of(row.at(2 * s)) >> 16 | bits_of(row.at(2 * s + 1));
  } else {
    for (int64_t s = 0; s < whole; ++s)
      to.words[s * to.height] = bits_of(row.at(2 * s)) >> 16 | bits_of(row.at(2 * s + 1));
  }
  if (in % 2) to.words[whole * to.height] = bits_of(row.at(in - 1)) >> 16;
}

// The bits of the greatest magnitude: those of infinities and NaN are above all others.
template <class Row>
static uint32_t greatest_of(const Row& row, int64_t in) {
  Ints greatest = {};
  const auto meet = [&greatest](Vec x) {
    const Ints magnitude = (Ints)x & 0x7fffffff;
    greatest = magnitude > greatest ? magnitude : greatest;
  };
  int64_t k = 0;
  for (; k + kLanes <= in; k += kLanes) meet(row.vector(k));
  if (k < in) meet(last_vector(row, k, in));
  int32_t most = 0;
  for (int i = 0; i < kLanes; ++i) most = greatest[i] > most ? greatest[i] : most;
  return (uint32_t)most;
}

// Words of a vector of whole numbers, the first `count` of them into their places from word s on.
static inline void store_steps(Ints whole, int64_t s, int64_t count, Place to) {
  typedef std::conditional_t<PanelDynamic::kDepth == 4, int8_t, int16_t> Step;
  typedef Step Steps __attribute__((vector_size(kLanes * sizeof(Step))));
  const Steps steps = __builtin_convertvector(whole, Steps);
  uint32_t words[kLanes / PanelDynamic::kDepth];
  memcpy(words, &steps, sizeof words);
  for (int64_t w = 0; w < count; ++w) to.words[(s + w) * to.height] = words[w];
}

// Rounds to -127 to 127 steps of the row's own, half to even. facts: [groups].
template <class Row>
static void lay_bytes(const Row& row, Inputs inputs, Place to, RowFacts* facts) {
  constexpr int64_t kDepth = PanelDynamic::kDepth, kWords = kLanes / kDepth;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the lowest bits
  const uint32_t greatest = greatest_of(row, inputs.count);
  const bool finite = greatest < 0x7f800000;
  // A row of subnormals may have no steps to speak of: it counts as zeros.
  const float steps = finite && greatest >= 0x01000000 ? 127 / float_of(greatest) : 0;
  const auto round = [&](Ints& sums, Vec x, int64_t k, int64_t words) {
    if (!finite) x = Vec{};
    const Ints whole = (Ints)((Words)(x * steps + kMagic) - bits_of(kMagic));
    sums += whole;
    store_steps(whole, k / kDepth, words, to);
  };
  for (int64_t g = 0; g < inputs.groups(); ++g) {
    const int64_t last = inputs.last(g);
    Ints sums = {};
    int64_t k = inputs.first(g);
    for (; k + kLanes <= last; k += kLanes) round(sums, row.vector(k), k, kWords);
    if (k < last) round(sums, last_vector(row, k, last), k, (last - k + kDepth - 1) / kDepth);
    facts[g].scale = finite ? float_of(greatest) / 127 : NAN;
    facts[g].bytes = 0;
    for (int i = 0; i < kLanes; ++i) facts[g].bytes += sums[i];
  }
}

template <class Row>
static void lay(const Row& row, Inputs inputs, Tiles kind, Place to, RowFacts* facts) {
  if (kind == Tiles::kPairs) lay_pairs(row, inputs.count, to);
  if (kind == Tiles::kFloats) lay_floats(row, inputs.count, to);
  if (kind == Tiles::kBytes) lay_bytes(row, inputs, to, facts);
  if (!facts) return;
  for (int64_t g = 0; g < inputs.groups(); ++g) facts[g].sum = sum_of(row, inputs.first(g), inputs.last(g));
}

template <class Element>
static void gather_of(const void* rows, int64_t row_stride, const int32_t* index, int64_t n, Inputs inputs, Tiles kind,
                      uint32_t* tiles, RowFacts* facts) {
  const Tiling tiling(n, kTileRows);
  const int64_t width = tile_width(inputs.count), row_bytes = row_stride * (int64_t)sizeof(typename Element::Bits);
  for (int64_t tile = 0; tile < tiling.tiles; ++tile) {
    const int64_t first = tiling.first(tile), height = tiling.rows(tile);
    for (int64_t m = 0; m < height; ++m) {
      const int64_t row = index ? index[first + m] : first + m;
      lay(StoredRow<Element>{(const char*)rows + row * row_bytes}, inputs, kind, {tiles + first * width + m, height},
          facts ? facts + (first + m) * inputs.groups() : nullptr);
    }
  }
}

static void gather(const void* rows, int32_t dtype, int64_t row_stride, const int32_t* index, int64_t n, Inputs inputs,
                   Tiles kind, uint32_t* tiles, RowFacts* facts) {
  if (dtype == MOE_FLOAT32) return gather_of<Float32>(rows, row_stride, index, n, inputs, kind, tiles, facts);
  if (dtype == MOE_BFLOAT16) return gather_of<BFloat16>(rows, row_stride, index, n, inputs, kind, tiles, facts);
  gather_of<Float16>(rows, row_stride, index, n, inputs, kind, tiles, facts);
}

}  // namespace MOE_VARIANT
