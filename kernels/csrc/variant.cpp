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

// Inputs begin to end of panel p; begin is a multiple of what lies side by side.
template <class Bits, class Places>
static void pack_inputs(const moe_matrix& source, const Matrix& matrix, int64_t p, int64_t begin, int64_t end, Bits* to) {
  constexpr int64_t kDepth = Places::kDepth;
  const Bits* from = (const Bits*)source.data;
  const int64_t in = matrix.in, whole = (end + kDepth - 1) / kDepth * kDepth;
  for (int64_t first = begin; first < whole; first += kPackSteps) {
    const int64_t last = first + kPackSteps < whole ? first + kPackSteps : whole;
    for (int64_t j = 0; j < kPanel; ++j) {
      const int64_t column = p * kPanel + j;
      const Bits* values = from + (column < matrix.out ? column : 0) * source.out_stride;
      for (int64_t k = first; k < last; ++k) {
        const Bits value = column < matrix.out && k < in ? Places::stored(values[k * source.in_stride]) : Bits{};
        to[(k - begin) / kDepth * kDepth * kPanel + Places::place(j, k % kDepth)] = value;
      }
    }
  }
}

template <class Bits, class Places>
static void pack_panels(const moe_matrix& source, Matrix& matrix) {
  for (int64_t p = 0; p < matrix.panels; ++p)
    pack_inputs<Bits, Places>(source, matrix, p, 0, matrix.in, (Bits*)(matrix.data.get() + p * matrix.panel_bytes));
}

// shift: what is stored stands for that much more than it says.
static void pack_scales(const moe_matrix& source, int64_t p, int64_t groups, int64_t g, float shift, float* scale,
                        float* offset) {
  for (int64_t j = 0; j < kPanel; ++j) {
    const int64_t column = p * kPanel + j, place = column * groups + g;
    scale[j] = column < source.out ? source.scale[place] : 0;
    offset[j] = column < source.out ? source.offset[place] - shift * source.scale[place] : 0;
  }
}

template <class Places>
static void pack_bytes(const moe_matrix& source, Matrix& matrix, float shift) {
  const Inputs inputs = matrix.inputs();
  if (!matrix.grouped()) {
    pack_panels<int8_t, Places>(source, matrix);
    for (int64_t p = 0; p < matrix.panels; ++p)
      pack_scales(source, p, 1, 0, shift, matrix.scale.get() + p * kPanel, matrix.offset.get() + p * kPanel);
    return;
  }
  for (int64_t p = 0; p < matrix.panels; ++p) {
    for (int64_t g = 0; g < inputs.groups(); ++g) {
      char* to = matrix.data.get() + p * matrix.panel_bytes + g * (kScaleBytes + matrix.group * kPanel);
      pack_scales(source, p, inputs.groups(), g, shift, (float*)to, (float*)to + kPanel);
      pack_inputs<int8_t, Places>(source, matrix, p, inputs.first(g), inputs.last(g), (int8_t*)to + kScaleBytes);
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
      return pack_bytes<Int8Places>(source, matrix, kInt8Shift);
    default:
      return pack_bytes<DynamicPlaces>(source, matrix, 0);
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
