// The products. One output element is one chain of fused multiply-adds along `in`, from the first to the last, in
// float32, whatever the number of rows, the tile they lie in and the thread: so the bits of a row depend on the row alone.
//
// One row is bound by reading the weights: several panels at once keep enough chains in flight. Several rows are bound
// by arithmetic: a tile of kTileRows rows by one panel keeps all accumulators in registers; a panel is widened as it is
// loaded, which costs nothing beside the multiply-adds (Zen 3: shifts go to ports that they leave free), so no widened
// copy is kept. Rows go in blocks that stay in the second-level cache while the panels pass by.
#pragma once

#include "matrix.h"
#include "simd.h"

namespace MOE_VARIANT {

constexpr int64_t kBlockBytes = 192 << 10;

struct PanelFloat32 {
  static constexpr int kStep = kPanel * 4;
  static inline void load(const char* from, Vec& low, Vec& high) {
    low = MOE_VARIANT::load<Vec>(from);
    high = MOE_VARIANT::load<Vec>(from + kLanes * 4);
  }
};

// Column j in the lower and column j + kLanes in the upper half of word j: each is one operation away from float.
struct PanelBFloat16 {
  static constexpr int kStep = kPanel * 2;
  static inline void load(const char* from, Vec& low, Vec& high) {
    const Words words = MOE_VARIANT::load<Words>(from);
    low = (Vec)(words << 16);
    high = (Vec)(words & 0xffff0000u);
  }
};

struct PanelFloat16 {
  static constexpr int kStep = kPanel * 2;
  static inline void load(const char* from, Vec& low, Vec& high) {
    low = widen_halves((const uint16_t*)from);
    high = widen_halves((const uint16_t*)from + kLanes);
  }
};

struct PanelInt8 {
  static constexpr int kStep = kPanel;
  static inline void load(const char* from, Vec& low, Vec& high) {
    low = widen_bytes((const int8_t*)from);
    high = widen_bytes((const int8_t*)from + kLanes);
  }
};

constexpr int64_t kAhead = 1024;  // bytes that are asked for ahead of their use

// Steps along `in` from one cache line of a panel to the next.
template <class Panel>
constexpr int64_t kLineSteps = Panel::kStep < 64 ? 64 / Panel::kStep : 1;

// One tile of M rows times P neighbouring panels.
template <class Panel, int M, int P>
static inline void tile_product(const float* tile, const char* panel, int64_t panel_bytes, int64_t in, float* sums,
                                int64_t sums_stride) {
  Vec low[M][P] = {}, high[M][P] = {};
  for (int64_t k = 0; k < in; ++k) {
    Vec left[P], right[P];
    // The hardware's prefetchers stop at the ends of pages; a panel goes on. Four rows take a tenth to a third less time
    // with it (Zen 3); one row, which keeps four streams going, does not.
    if (M > 1 && k % kLineSteps<Panel> == 0) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) __builtin_prefetch(panel + p * panel_bytes + k * Panel::kStep + kAhead);
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) Panel::load(panel + p * panel_bytes + k * Panel::kStep, left[p], right[p]);
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const Vec x = broadcast(tile[k * M + m]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        low[m][p] = fma(x, left[p], low[m][p]);
        high[m][p] = fma(x, right[p], high[m][p]);
      }
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < P; ++p) {
      store(sums + m * sums_stride + p * kPanel, low[m][p]);
      store(sums + m * sums_stride + p * kPanel + kLanes, high[m][p]);
    }
  }
}

// As many panels at once as there are accumulators for.
constexpr int panels_at_once(int rows) {
  return 4 * 2 * rows <= kAccumulators ? 4 : 2 * 2 * rows <= kAccumulators ? 2 : 1;
}

template <class Panel, int M, int P>
static void tile_panels(const float* tile, const char* panel, int64_t panel_bytes, int64_t in, int64_t panels,
                        float* sums, int64_t sums_stride) {
  int64_t p = 0;
  for (; p + P <= panels; p += P)
    tile_product<Panel, M, P>(tile, panel + p * panel_bytes, panel_bytes, in, sums + p * kPanel, sums_stride);
  for (; p < panels; ++p)
    tile_product<Panel, M, 1>(tile, panel + p * panel_bytes, panel_bytes, in, sums + p * kPanel, sums_stride);
}

typedef void (*TilePanels)(const float*, const char*, int64_t, int64_t, int64_t, float*, int64_t);

template <class Panel, int M>
constexpr TilePanels tile_panels_of() {
  return tile_panels<Panel, M, panels_at_once(M)>;
}

template <class Panel>
static TilePanels tile_panels_for(int64_t rows) {
  static constexpr TilePanels functions[] = {
      tile_panels_of<Panel, 1>(), tile_panels_of<Panel, 2>(), tile_panels_of<Panel, 3>(),
      tile_panels_of<Panel, 4>(), tile_panels_of<Panel, 5>(), tile_panels_of<Panel, 6>(),
#if defined(__AVX512F__) || defined(__aarch64__)
      tile_panels_of<Panel, 7>(), tile_panels_of<Panel, 8>(), tile_panels_of<Panel, 9>(),
      tile_panels_of<Panel, 10>(), tile_panels_of<Panel, 11>(), tile_panels_of<Panel, 12>(),
#endif
  };
  static_assert(sizeof(functions) / sizeof(functions[0]) == kTileRows, "one function for each height of a tile");
  return functions[rows - 1];
}

template <class Panel>
static void product_of(const Matrix& matrix, const float* tiles, int64_t n, int64_t begin, int64_t end, float* sums,
                       int64_t sums_stride) {
  const Tiling tiling(n, kTileRows);
  const int64_t in = matrix.in, bytes = matrix.panel_bytes;
  const int64_t row_bytes = in * (int64_t)sizeof(float);
  int64_t block = row_bytes ? kBlockBytes / (row_bytes * kTileRows) : 1;
  if (block < 1) block = 1;
  for (int64_t start = 0; start < tiling.tiles; start += block) {
    const int64_t stop = start + block < tiling.tiles ? start + block : tiling.tiles;
    // With several tiles a panel is used by each of them while it is in the cache.
    const int64_t step = stop - start > 1 ? 1 : end - begin;
    for (int64_t p = begin; p < end; p += step) {
      for (int64_t tile = start; tile < stop; ++tile) {
        const int64_t row = tiling.first(tile);
        tile_panels_for<Panel>(tiling.rows(tile))(tiles + row * in, matrix.data.get() + p * bytes, bytes, in, step,
                                                  sums + row * sums_stride + p * kPanel, sums_stride);
      }
    }
  }
}

}  // namespace MOE_VARIANT
