// Between the products: activation, and the weighted sum of a row's slots. Every step rounds to the formula's dtype where
// torch's operators do (moe.kernels.ffn.torch_backend, moe.kernels.slot_sum), so that only the products' order of
// addition and the last places of the curves differ from it.
//
// All columns go through the same vector code, the last ones with lanes to spare: an element's bits don't depend on where
// it lies.
#pragma once

#include <math.h>

#include "rows.h"

namespace MOE_VARIANT {

static inline Vec select(Ints mask, Vec yes, Vec no) { return (Vec)(((Ints)yes & mask) | ((Ints)no & ~mask)); }

// Rounds each lane to an element type and back.
template <class Element>
static inline Vec rounded(Vec x);

template <>
inline Vec rounded<Float32>(Vec x) {
  return x;
}

template <>
inline Vec rounded<BFloat16>(Vec x) {
  const Words bits = (Words)x;
  const Vec nearest = (Vec)((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
  return select(x == x, nearest, x);  // a NaN stays as it is; it is cut when it is stored
}

template <>
inline Vec rounded<Float16>(Vec x) {
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = Float16::widen(Float16::narrow(x[lane]));
  return x;
}

// e^x within two units in the last place; infinity and zero beyond float's range, NaN for NaN. 2^n * e^r with
// |r| <= ln(2) / 2 and the series of e^r to the seventh power, whose rest is below 2^-27.
static inline Vec exponential(Vec x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the lowest bits
  x = select(x > 89.0f, broadcast(89.0f), x);
  x = select(x < -104.0f, broadcast(-104.0f), x);
  const Vec shifted = fma(x, broadcast(1.44269504f), broadcast(magic));
  const Vec n = shifted - magic;
  // ln(2) in two parts, the first with so few bits that its product with n is exact.
  Vec r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec sum = broadcast(1.0f / 5040);
  sum = fma(sum, r, broadcast(1.0f / 720));
  sum = fma(sum, r, broadcast(1.0f / 120));
  sum = fma(sum, r, broadcast(1.0f / 24));
  sum = fma(sum, r, broadcast(1.0f / 6));
  sum = fma(sum, r, broadcast(0.5f));
  sum = fma(sum, r, broadcast(1.0f));
  sum = fma(sum, r, broadcast(1.0f));
  // In two steps, so that the ends of the range come out as subnormals and infinity.
  const Ints power = (Ints)((Words)shifted - bits_of(magic)), half = power >> 1;
  const Vec first = (Vec)((Words)(half + 127) << 23), second = (Vec)((Words)(power - half + 127) << 23);
  return sum * first * second;
}

static inline Vec logistic(Vec x) { return 1.0f / (1.0f + exponential(-x)); }

static inline Vec curve(int32_t activation, Vec x) {
  if (activation == MOE_SILU) return x / (1.0f + exponential(-x));
  if (activation == MOE_RELU2) {
    const Vec positive = select(x < 0.0f, Vec{}, x);
    return positive * positive;
  }
  if (activation == MOE_GELU_TANH) {
    // x * (1 + tanh(u)) / 2 is x * logistic(2 u), without the cancellation of 1 + tanh.
    const Vec cube = x * x * x;
    return x / (1.0f + exponential(-2 * 0.7978845608f * fma(broadcast(0.044715f), cube, x)));
  }
  // GELU proper. erfc keeps the left tail's digits; the library's is used, lane by lane.
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = x[lane] * 0.5f * erfcf(x[lane] * -0.7071067812f);
  return x;
}

template <class Element>
static inline Vec biased(const float* sums, const float* bias, int64_t column) {
  const Vec product = rounded<Element>(load<Vec>(sums + column));
  return bias ? rounded<Element>(product + load<Vec>(bias + column)) : product;
}

template <class Element>
static inline Vec activated(const moe_ffn& formula, const float* sums, const float* bias, int64_t column) {
  Vec gate = biased<Element>(sums, bias, column);
  if (!formula.gated) return rounded<Element>(curve(formula.activation, gate));
  Vec linear = biased<Element>(sums, bias, formula.inner + column);
  if (formula.activation != MOE_CLAMPED_SWIGLU)
    return rounded<Element>(rounded<Element>(curve(formula.activation, gate)) * linear);
  const Vec limit = broadcast(formula.limit);
  gate = select(gate > limit, limit, gate);
  linear = select(linear > limit, limit, select(linear < -limit, -limit, linear));
  const Vec open = rounded<Element>(logistic(rounded<Element>(gate * formula.alpha)));
  return rounded<Element>(rounded<Element>(linear + 1.0f) * rounded<Element>(gate * open));
}

// Values go where the gate's sums were, then into the tile: the last vector of them is read before it is overwritten.
template <class Element>
static void activate_of(const moe_ffn& formula, float* sums, int64_t sums_stride, const float* bias, int64_t n,
                        int64_t first, int64_t last, Tiles kind, int64_t group, uint32_t* tiles, RowFacts* facts) {
  const Tiling tiling(n, kTileRows);
  const int64_t inner = formula.inner, width = tile_width(inner);
  const Inputs inputs{inner, group};
  int64_t tile = 0;
  for (int64_t row = first; row < last; ++row) {
    while (row >= tiling.first(tile) + tiling.rows(tile)) ++tile;
    const int64_t top = tiling.first(tile);
    float* values = sums + row * sums_stride;
    for (int64_t column = 0; column < inner; column += kLanes)
      store(values + column, activated<Element>(formula, values, bias, column));
    lay(FloatRow{values}, inputs, kind, {tiles + top * width + (row - top), tiling.rows(tile)},
        facts ? facts + row * inputs.groups() : nullptr);
  }
}

static void activate(const moe_ffn& formula, float* sums, int64_t sums_stride, const float* bias, int64_t n,
                     int64_t first, int64_t last, Tiles kind, int64_t group, uint32_t* tiles, RowFacts* facts) {
  if (formula.dtype == MOE_FLOAT32)
    return activate_of<Float32>(formula, sums, sums_stride, bias, n, first, last, kind, group, tiles, facts);
  if (formula.dtype == MOE_BFLOAT16)
    return activate_of<BFloat16>(formula, sums, sums_stride, bias, n, first, last, kind, group, tiles, facts);
  activate_of<Float16>(formula, sums, sums_stride, bias, n, first, last, kind, group, tiles, facts);
}

// Product: what weight * output rounds to, as torch promotes their dtypes.
template <class Element, class Product, class Out>
static void combine_of(int64_t hidden, const SlotOutput* slots, int64_t count, void* partial) {
  typename Out::Bits* to = (typename Out::Bits*)partial;
  for (int64_t column = 0; column < hidden; column += kLanes) {
    Vec sum = {};
    for (int64_t slot = 0; slot < count; ++slot) {
      const Vec output = biased<Element>(slots[slot].sums, slots[slot].bias, column);
      const Vec weighted = rounded<Product>(output * slots[slot].weight);
      sum = slot ? sum + weighted : weighted;  // 0 + x would lose the sign of -0
    }
    float lanes[kLanes];
    store(lanes, sum);
    const int64_t rest = hidden - column < kLanes ? hidden - column : kLanes;
    for (int64_t lane = 0; lane < rest; ++lane) to[column + lane] = Out::narrow(lanes[lane]);
  }
}

template <class Element, class Product>
static void combine_to(int64_t hidden, const SlotOutput* slots, int64_t count, void* partial, int32_t partial_dtype) {
  if (partial_dtype == MOE_FLOAT32) return combine_of<Element, Product, Float32>(hidden, slots, count, partial);
  if (partial_dtype == MOE_BFLOAT16) return combine_of<Element, Product, BFloat16>(hidden, slots, count, partial);
  combine_of<Element, Product, Float16>(hidden, slots, count, partial);
}

static void combine(const moe_ffn& formula, const SlotOutput* slots, int64_t count, int32_t weights_dtype,
                    void* partial, int32_t partial_dtype) {
  const bool same = formula.dtype == weights_dtype;
  const int64_t hidden = formula.hidden;
  if (formula.dtype == MOE_FLOAT32) return combine_to<Float32, Float32>(hidden, slots, count, partial, partial_dtype);
  if (formula.dtype == MOE_BFLOAT16) {
    if (same) return combine_to<BFloat16, BFloat16>(hidden, slots, count, partial, partial_dtype);
    return combine_to<BFloat16, Float32>(hidden, slots, count, partial, partial_dtype);
  }
  if (same) return combine_to<Float16, Float16>(hidden, slots, count, partial, partial_dtype);
  combine_to<Float16, Float32>(hidden, slots, count, partial, partial_dtype);
}

}  // namespace MOE_VARIANT
