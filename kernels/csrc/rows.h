// Rows into tiles (matrix.h): copied for products as floats, as pairs or rounded to bytes, with the facts that go with them.
//
// A row's facts are summed in one order, whatever the tile it lies in: they are as batch-invariant as the products.
#pragma once

#include <math.h>

#include "panels.h"
#include "scalars.h"

namespace MOE_VARIANT {

// Where a row lies in its tile: word w of it at words[w * height].
struct Place {
  uint32_t* words;
  int64_t height;
};

// A source of values: at(k) is input k as float.
template <class Element>
struct StoredRow {
  const char* row;
  inline float at(int64_t k) const {
    return Element::widen(element_at<typename Element::Bits>(row + k * (int64_t)sizeof(typename Element::Bits)));
  }
};

struct FloatRow {
  const float* row;
  inline float at(int64_t k) const { return row[k]; }
};

template <class Row>
static float sum_of(const Row& row, int64_t in) {
  Vec total = {};
  int64_t k = 0;
  for (; k + kLanes <= in; k += kLanes) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = row.at(k + i);
    total += load<Vec>(lanes);
  }
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += total[i];
  for (; k < in; ++k) sum += row.at(k);
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

// Rounds to -127 to 127 steps, half to even.
template <class Row>
static void lay_bytes(const Row& row, int64_t in, Place to, RowFacts& facts) {
  uint32_t greatest = 0;  // of magnitudes' bits: those of infinities and NaN are above all others
  for (int64_t k = 0; k < in; ++k) {
    const uint32_t magnitude = bits_of(row.at(k)) & 0x7fffffff;
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  const bool finite = greatest < 0x7f800000;
  facts.scale = finite ? float_of(greatest) / 127 : NAN;
  // A row of subnormals may have no steps to speak of: it counts as zeros.
  const float steps = finite && greatest >= 0x01000000 ? 127 / float_of(greatest) : 0;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the lowest bits
  constexpr int64_t kDepth = PanelDynamic::kDepth, kBits = 32 / kDepth;
  int32_t sum = 0;
  for (int64_t s = 0; s < (in + kDepth - 1) / kDepth; ++s) {
    uint32_t word = 0;
    for (int64_t d = 0; d < kDepth; ++d) {
      const int64_t k = s * kDepth + d;
      const float x = k < in && finite ? row.at(k) : 0;
      const int32_t q = (int32_t)(bits_of(x * steps + kMagic) - bits_of(kMagic));
      sum += q;
      word |= ((uint32_t)q & (0xffffffffu >> (32 - kBits))) << (d * kBits);
    }
    to.words[s * to.height] = word;
  }
  facts.bytes = sum;
}

template <class Row>
static void lay(const Row& row, int64_t in, Tiles kind, Place to, RowFacts* facts) {
  if (kind == Tiles::kPairs) lay_pairs(row, in, to);
  if (kind == Tiles::kFloats) lay_floats(row, in, to);
  if (kind == Tiles::kBytes) lay_bytes(row, in, to, *facts);
  if (facts) facts->sum = sum_of(row, in);
}

template <class Element>
static void gather_of(const void* rows, int64_t row_stride, const int32_t* index, int64_t n, int64_t in, Tiles kind,
                      uint32_t* tiles, RowFacts* facts) {
  const Tiling tiling(n, kTileRows);
  const int64_t width = tile_width(in), row_bytes = row_stride * (int64_t)sizeof(typename Element::Bits);
  for (int64_t tile = 0; tile < tiling.tiles; ++tile) {
    const int64_t first = tiling.first(tile), height = tiling.rows(tile);
    for (int64_t m = 0; m < height; ++m) {
      const int64_t row = index ? index[first + m] : first + m;
      lay(StoredRow<Element>{(const char*)rows + row * row_bytes}, in, kind, {tiles + first * width + m, height},
          facts ? facts + first + m : nullptr);
    }
  }
}

static void gather(const void* rows, int32_t dtype, int64_t row_stride, const int32_t* index, int64_t n, int64_t in,
                   Tiles kind, uint32_t* tiles, RowFacts* facts) {
  if (dtype == MOE_FLOAT32) return gather_of<Float32>(rows, row_stride, index, n, in, kind, tiles, facts);
  if (dtype == MOE_BFLOAT16) return gather_of<BFloat16>(rows, row_stride, index, n, in, kind, tiles, facts);
  gather_of<Float16>(rows, row_stride, index, n, in, kind, tiles, facts);
}

}  // namespace MOE_VARIANT
