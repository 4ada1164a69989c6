// Everything that is compiled once per instruction set (MOE_VARIANT names it): packing, products, rounding.

#include "activation.h"
#include "attention.h"
#include "matrix.h"
#include "product.h"
#include "rows.h"
#include "scalars.h"
#include "simd.h"

namespace MOE_VARIANT {

constexpr int64_t kPackSteps = 128;  // a block of them stays in the first-level cache while columns go into it

static int64_t depth(int32_t dtype) {
  if (dtype == MOE_BFLOAT16) return BFloat16Places::kDepth;
  if (dtype == MOE_INT8) return Int8Places::kDepth;
  return dtype == MOE_INT8_DYNAMIC ? DynamicPlaces::kDepth : 1;
}

static Tiles tiles(int32_t matrix_dtype, int32_t rows_dtype) {
  if (matrix_dtype == MOE_INT8_DYNAMIC) return Tiles::kBytes;
  const bool paired = MOE_DOTS && rows_dtype == MOE_BFLOAT16 && (matrix_dtype == MOE_BFLOAT16 || matrix_dtype == MOE_INT8);
  return paired ? Tiles::kPairs : Tiles::kFloats;
}

template <class Bits, class Places>
static void pack_panels(const moe_matrix& source, Matrix& matrix) {
  constexpr int64_t kDepth = Places::kDepth;
  const Bits* from = (const Bits*)source.data;
  const int64_t in = matrix.in, whole = (in + kDepth - 1) / kDepth * kDepth;
  for (int64_t p = 0; p < matrix.panels; ++p) {
    Bits* panel = (Bits*)(matrix.data.get() + p * matrix.panel_bytes);
    for (int64_t first = 0; first < whole; first += kPackSteps) {
      const int64_t last = first + kPackSteps < whole ? first + kPackSteps : whole;
      for (int64_t j = 0; j < kPanel; ++j) {
        const int64_t column = p * kPanel + j;
        const Bits* values = from + (column < matrix.out ? column : 0) * source.out_stride;
        for (int64_t k = first; k < last; ++k) {
          const Bits value = column < matrix.out && k < in ? Places::stored(values[k * source.in_stride]) : Bits{};
          panel[k / kDepth * kDepth * kPanel + Places::place(j, k % kDepth)] = value;
        }
      }
    }
  }
}

static void pack(const moe_matrix& source, Matrix& matrix) {
  switch (source.dtype) {
    case MOE_FLOAT32:
      return pack_panels<float, PlainPlaces>(source, matrix);
    case MOE_BFLOAT16:
      return pack_panels<uint16_t, BFloat16Places>(source, matrix);
    case MOE_FLOAT16:
      return pack_panels<uint16_t, PlainPlaces>(source, matrix);
    case MOE_INT8:
      pack_panels<int8_t, Int8Places>(source, matrix);
      break;
    default:
      pack_panels<int8_t, DynamicPlaces>(source, matrix);
  }
  const float shift = source.dtype == MOE_INT8 ? kInt8Shift : 0;  // what is stored stands for that much more
  for (int64_t column = 0; column < matrix.panels * kPanel; ++column) {
    matrix.scale[column] = column < matrix.out ? source.scale[column] : 0;
    matrix.offset[column] = column < matrix.out ? source.offset[column] - shift * source.scale[column] : 0;
  }
}

static void multiply(const Job& job, Tiles kind) {
  switch (job.matrix.dtype) {
    case MOE_FLOAT32:
      return product_of<PanelFloat32>(job);
    case MOE_FLOAT16:
      return product_of<PanelFloat16>(job);
    case MOE_INT8_DYNAMIC:
      return product_of<PanelDynamic>(job);
#if MOE_DOTS
    case MOE_BFLOAT16:
      return kind == Tiles::kPairs ? product_of<BFloat16Pairs<PairRows>>(job) : product_of<BFloat16Pairs<SplitRows>>(job);
    default:
      return kind == Tiles::kPairs ? product_of<Int8Pairs<PairRows>>(job) : product_of<Int8Pairs<SplitRows>>(job);
#else
    case MOE_BFLOAT16:
      return product_of<PanelBFloat16>(job);
    default:
      return product_of<PanelInt8>(job);
#endif
  }
  (void)kind;
}

static void product(const Matrix& matrix, Tiles kind, const uint32_t* tiles, const RowFacts* facts, int64_t n,
                    int64_t begin, int64_t end, float* sums, int64_t sums_stride) {
  multiply({matrix, tiles, facts, n, begin, end, sums, sums_stride}, kind);
}

template <class Element>
static void finish_of(const float* sums, int64_t sums_stride, const float* bias, int64_t n, int64_t begin,
                      int64_t end, void* out, int64_t out_stride) {
  for (int64_t row = 0; row < n; ++row) {
    const float* from = sums + row * sums_stride;
    typename Element::Bits* to = (typename Element::Bits*)out + row * out_stride;
    if (bias) {
      for (int64_t c = begin; c < end; ++c) to[c] = Element::narrow(from[c] + bias[c]);
    } else {
      for (int64_t c = begin; c < end; ++c) to[c] = Element::narrow(from[c]);
    }
  }
}

static void finish(const float* sums, int64_t sums_stride, const float* bias, int64_t n, int64_t begin, int64_t end,
                   void* out, int32_t dtype, int64_t out_stride) {
  if (dtype == MOE_FLOAT32) return finish_of<Float32>(sums, sums_stride, bias, n, begin, end, out, out_stride);
  if (dtype == MOE_BFLOAT16) return finish_of<BFloat16>(sums, sums_stride, bias, n, begin, end, out, out_stride);
  finish_of<Float16>(sums, sums_stride, bias, n, begin, end, out, out_stride);
}

#define MOE_TEXT(name) #name
#define MOE_NAME(name) MOE_TEXT(name)

extern const Variant variant;
const Variant variant = {MOE_NAME(MOE_VARIANT), kPanel, kTileRows, depth, tiles, pack, gather, product,
                         finish,                activate, combine,    attention_scratch, attend, rms_norm, add, rotate};

}  // namespace MOE_VARIANT
