// Everything that is compiled once per instruction set (MOE_VARIANT names it): packing, products, rounding.

#include "activation.h"
#include "attention.h"
#include "matrix.h"
#include "product.h"
#include "scalars.h"
#include "simd.h"

namespace MOE_VARIANT {

// Where in a step column j of a panel goes.
static inline int64_t plain_place(int64_t j) { return j; }
static inline int64_t paired_place(int64_t j) { return j % kLanes * 2 + j / kLanes; }  // see PanelBFloat16

constexpr int64_t kPackSteps = 128;  // a block of them stays in the first-level cache while columns go into it

template <class Bits>
static void pack_panels(const moe_matrix& source, Matrix& matrix, int64_t (*place)(int64_t)) {
  const Bits* from = (const Bits*)source.data;
  for (int64_t p = 0; p < matrix.panels; ++p) {
    Bits* panel = (Bits*)(matrix.data.get() + p * matrix.panel_bytes);
    for (int64_t first = 0; first < matrix.in; first += kPackSteps) {
      const int64_t last = first + kPackSteps < matrix.in ? first + kPackSteps : matrix.in;
      for (int64_t j = 0; j < kPanel; ++j) {
        const int64_t column = p * kPanel + j;
        const Bits* values = from + (column < matrix.out ? column : 0) * source.out_stride;
        Bits* to = panel + place(j);
        for (int64_t k = first; k < last; ++k)
          to[k * kPanel] = column < matrix.out ? values[k * source.in_stride] : Bits{};
      }
    }
  }
}

static void pack(const moe_matrix& source, Matrix& matrix) {
  switch (source.dtype) {
    case MOE_FLOAT32:
      return pack_panels<float>(source, matrix, plain_place);
    case MOE_BFLOAT16:
      return pack_panels<uint16_t>(source, matrix, paired_place);
    case MOE_FLOAT16:
      return pack_panels<uint16_t>(source, matrix, plain_place);
    default:
      pack_panels<int8_t>(source, matrix, plain_place);
  }
  for (int64_t column = 0; column < matrix.panels * kPanel; ++column) {
    matrix.scale[column] = column < matrix.out ? source.scale[column] : 0;
    matrix.offset[column] = column < matrix.out ? source.offset[column] : 0;
  }
}

template <class Element>
static void gather_of(const void* rows, int64_t row_stride, const int32_t* index, int64_t n, int64_t in,
                      float* tiles) {
  typedef typename Element::Bits Bits;
  constexpr int64_t kSize = sizeof(Bits);
  const Tiling tiling(n, kTileRows);
  for (int64_t tile = 0; tile < tiling.tiles; ++tile) {
    const int64_t first = tiling.first(tile), height = tiling.rows(tile);
    float* to = tiles + first * in;
    if (height == 1) {  // the common case, as a loop over neighbours
      const char* row = (const char*)rows + (index ? index[first] : first) * row_stride * kSize;
      for (int64_t k = 0; k < in; ++k) to[k] = Element::widen(element_at<Bits>(row + k * kSize));
      continue;
    }
    for (int64_t m = 0; m < height; ++m) {
      const char* row = (const char*)rows + (index ? index[first + m] : first + m) * row_stride * kSize;
      for (int64_t k = 0; k < in; ++k) to[k * height + m] = Element::widen(element_at<Bits>(row + k * kSize));
    }
  }
}

static void gather(const void* rows, int32_t dtype, int64_t row_stride, const int32_t* index, int64_t n, int64_t in,
                   float* tiles) {
  if (dtype == MOE_FLOAT32) return gather_of<Float32>(rows, row_stride, index, n, in, tiles);
  if (dtype == MOE_BFLOAT16) return gather_of<BFloat16>(rows, row_stride, index, n, in, tiles);
  gather_of<Float16>(rows, row_stride, index, n, in, tiles);
}

static void row_sums(const float* tiles, int64_t n, int64_t in, float* sums) {
  const Tiling tiling(n, kTileRows);
  for (int64_t tile = 0; tile < tiling.tiles; ++tile) {
    const int64_t first = tiling.first(tile), height = tiling.rows(tile);
    float total[kTileRows] = {};
    for (int64_t k = 0; k < in; ++k)
      for (int64_t m = 0; m < height; ++m) total[m] += tiles[first * in + k * height + m];
    for (int64_t m = 0; m < height; ++m) sums[first + m] = total[m];
  }
}

// scale * sum(x * q) + offset * sum(x): the weights' scale and offset, applied once per output.
static void dequantise(const Matrix& matrix, const float* row_sums, int64_t n, int64_t begin, int64_t end,
                       float* sums, int64_t sums_stride) {
  for (int64_t row = 0; row < n; ++row) {
    const Vec total = broadcast(row_sums[row]);
    for (int64_t column = begin * kPanel; column < end * kPanel; column += kLanes) {
      float* at = sums + row * sums_stride + column;
      const Vec scaled = load<Vec>(at) * load<Vec>(matrix.scale.get() + column);
      store(at, fma(total, load<Vec>(matrix.offset.get() + column), scaled));
    }
  }
}

static void product(const Matrix& matrix, const float* tiles, const float* row_sums, int64_t n, int64_t begin,
                    int64_t end, float* sums, int64_t sums_stride) {
  switch (matrix.dtype) {
    case MOE_FLOAT32:
      return product_of<PanelFloat32>(matrix, tiles, n, begin, end, sums, sums_stride);
    case MOE_BFLOAT16:
      return product_of<PanelBFloat16>(matrix, tiles, n, begin, end, sums, sums_stride);
    case MOE_FLOAT16:
      return product_of<PanelFloat16>(matrix, tiles, n, begin, end, sums, sums_stride);
    default:
      product_of<PanelInt8>(matrix, tiles, n, begin, end, sums, sums_stride);
      dequantise(matrix, row_sums, n, begin, end, sums, sums_stride);
  }
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
const Variant variant = {MOE_NAME(MOE_VARIANT), kPanel, kTileRows, pack, gather, product, row_sums, finish,
                         activate,              combine, attention_scratch, attend, rms_norm};

}  // namespace MOE_VARIANT
