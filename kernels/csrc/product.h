// The products. One output element is one chain along `in`, from the first to the last, whatever the number of rows, the
// tile they lie in and the thread: so the bits of a row depend on the row alone. Its links are a fused multiply-add in
// float32, or where MOE_DOTS is set and rows are bfloat16 an instruction that takes two inputs.
//
// One row is bound by reading the weights, which one stream does fastest: a panel at a time (Zen 4: a tenth less time than
// four panels at once; its two chains take a line in three cycles, far above the speed of memory). Several rows are bound by
// arithmetic: a tile of kTileRows rows by one panel keeps all accumulators in registers; a panel is widened as it is
// loaded, which costs nothing beside the multiply-adds (Zen 3: shifts go to ports that they leave free), so no widened
// copy is kept. Rows go in blocks that stay in the second-level cache while the panels pass by.
#pragma once

#include <type_traits>

#include "panels.h"

namespace MOE_VARIANT {

constexpr int64_t kBlockBytes = 192 << 10;

constexpr int64_t kAhead = 2048;  // bytes that are asked for ahead of their use

// What to ask for ahead of its use: at step s what lies at `from` + s * `step`, a step's lines of it.
struct Ahead {
  const char* from;
  int64_t step;
};

template <class Panel>
static inline void prefetch_step(const Ahead& ahead, int64_t s) {
  if (Panel::kStep < 64 && s % (64 / (Panel::kStep < 64 ? Panel::kStep : 64))) return;
#pragma GCC unroll 2
  for (int line = 0; line < (Panel::kStep + 63) / 64; ++line)
    __builtin_prefetch(ahead.from + s * ahead.step + line * 64);
}

// One tile of M rows times P neighbouring panels.
template <class Panel, int M, int P>
static inline void tile_product(const uint32_t* tile, const char* panel, int64_t panel_bytes, int64_t steps,
                                const Ahead& ahead, float* sums, int64_t sums_stride) {
  Vec low[M][P] = {}, high[M][P] = {};
  for (int64_t s = 0; s < steps; ++s) {
    typename Panel::Weights weights[P];
    // The hardware's prefetchers stop at the ends of pages; a panel goes on. Four rows take a tenth to a third less time
    // with it (Zen 3); one row takes a tenth more (Zen 4).
    if (M > 1) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) prefetch_step<Panel>({ahead.from + p * panel_bytes, ahead.step}, s);
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) weights[p] = Panel::load(panel + p * panel_bytes + s * Panel::kStep);
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        Panel::add(tile + s * Panel::kWords * M + m, M, weights[p], low[m][p], high[m][p]);
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      store(sums + m * sums_stride + p * kPanel, low[m][p]);
      store(sums + m * sums_stride + p * kPanel + kLanes, high[m][p]);
    }
  }
}

// For several rows as many panels at once as there are accumulators for.
constexpr int panels_at_once(int rows) {
  return rows == 1 ? 1 : 4 * 2 * rows <= kAccumulators ? 4 : 2 * 2 * rows <= kAccumulators ? 2 : 1;
}

template <class Panel, int M, int P>
static void tile_panels(const uint32_t* tile, const char* panel, int64_t panel_bytes, int64_t steps, int64_t panels,
                        Ahead ahead, float* sums, int64_t sums_stride) {
  const auto next = [&](int64_t count) {
    panel += count * panel_bytes;
    ahead.from += count * panel_bytes;
    sums += count * kPanel;
    panels -= count;
  };
  for (; panels >= P; next(P)) tile_product<Panel, M, P>(tile, panel, panel_bytes, steps, ahead, sums, sums_stride);
  for (; panels > 0; next(1)) tile_product<Panel, M, 1>(tile, panel, panel_bytes, steps, ahead, sums, sums_stride);
}

typedef void (*TilePanels)(const uint32_t*, const char*, int64_t, int64_t, int64_t, Ahead, float*, int64_t);

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

struct Job {
  const Matrix& matrix;
  const uint32_t* tiles;
  const RowFacts* facts;
  int64_t n, begin, end;
  float* sums;
  int64_t sums_stride;
};

// What products with bytes stand for, while they are in the cache: integer sums of rounded rows to float with the row's
// scale, without what was added to each weight; then scale * sum(x * q) + offset * sum(x).
template <class Panel>
static inline void scale_sums(const Job& job, int64_t row, int64_t rows, int64_t p, int64_t panels) {
  for (int64_t last = row + rows; row < last; ++row) {
    const RowFacts& facts = job.facts[row];
    const Vec total = broadcast(facts.sum);
    for (int64_t column = p * kPanel; column < (p + panels) * kPanel; column += kLanes) {
      float* at = job.sums + row * job.sums_stride + column;
      Vec sum = load<Vec>(at);
      if constexpr (std::is_same<Panel, PanelDynamic>::value) {
        const Words shifted = broadcast_word((uint32_t)(facts.bytes * PanelDynamic::kShift));
        sum = __builtin_convertvector((Ints)((Words)sum - shifted), Vec) * broadcast(facts.scale);
      }
      const Vec scaled = sum * load<Vec>(job.matrix.scale.get() + column);
      store(at, fma(total, load<Vec>(job.matrix.offset.get() + column), scaled));
    }
  }
}

template <class Panel>
static void one_tile(const Job& job, const Tiling& tiling, int64_t tile, int64_t p, int64_t panels, Ahead ahead) {
  const Matrix& matrix = job.matrix;
  const int64_t row = tiling.first(tile), steps = (matrix.in + Panel::kDepth - 1) / Panel::kDepth;
  tile_panels_for<Panel>(tiling.rows(tile))(job.tiles + row * tile_width(matrix.in),
                                            matrix.data.get() + p * matrix.panel_bytes, steps * Panel::kStep, steps,
                                            panels, ahead, job.sums + row * job.sums_stride + p * kPanel,
                                            job.sums_stride);
  if (matrix.of_bytes()) scale_sums<Panel>(job, row, tiling.rows(tile), p, panels);
}

template <class Panel>
static void product_of(const Job& job) {
  const Matrix& matrix = job.matrix;
  const Tiling tiling(job.n, kTileRows);
  const int64_t row_bytes = tile_width(matrix.in) / Panel::kDepth * Panel::kWords * 4;
  int64_t block = kBlockBytes / (row_bytes * kTileRows);
  if (block < 1) block = 1;
  for (int64_t start = 0; start < tiling.tiles; start += block) {
    const int64_t stop = start + block < tiling.tiles ? start + block : tiling.tiles, tiles = stop - start;
    if (tiles == 1) {
      const char* from = matrix.data.get() + job.begin * matrix.panel_bytes;
      one_tile<Panel>(job, tiling, start, job.begin, job.end - job.begin, {from + kAhead, Panel::kStep});
      continue;
    }
    // With several tiles a panel is used by each of them while it is in the cache, and each asks for a part of the next
    // panel: so memory is read all the time, not only by the first of them.
    for (int64_t p = job.begin; p < job.end; ++p) {
      const char* next = matrix.data.get() + (p + 1 < matrix.panels ? p + 1 : p) * matrix.panel_bytes;
      for (int64_t tile = 0; tile < tiles; ++tile)
        one_tile<Panel>(job, tiling, start + tile, p, 1,
                        {next + matrix.panel_bytes * tile / tiles, (Panel::kStep + tiles - 1) / tiles});
    }
  }
}

}  // namespace MOE_VARIANT
