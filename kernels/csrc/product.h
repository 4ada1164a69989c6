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

// The cache that it goes to: the first, or the second if the first would lose it again before it is used.
constexpr int kFirst = 3, kSecond = 2;  // as __builtin_prefetch counts

template <class Panel, int Cache>
static inline void prefetch_step(const Ahead& ahead, int64_t s) {
  if (Panel::kStep < 64 && s % (64 / (Panel::kStep < 64 ? Panel::kStep : 64))) return;
#pragma GCC unroll 2
  for (int line = 0; line < (Panel::kStep + 63) / 64; ++line)
    __builtin_prefetch(ahead.from + s * ahead.step + line * 64, 0, Cache);
}

// One tile of M rows times P neighbouring panels.
template <class Panel, int M, int P, int Cache>
static inline void tile_product(const uint32_t* tile, const char* panel, int64_t panel_bytes, int64_t steps,
                                const Ahead& ahead, float* sums, int64_t sums_stride) {
  Vec low[M][P] = {}, high[M][P] = {};
  for (int64_t s = 0; s < steps; ++s) {
    typename Panel::Weights weights[P];
    // The hardware's prefetchers stop at the ends of pages; a panel goes on. Four rows take a tenth to a third less time
    // with it (Zen 3); one row takes a tenth more (Zen 4).
    if (M > 1) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) prefetch_step<Panel, Cache>({ahead.from + p * panel_bytes, ahead.step}, s);
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

template <class Panel, int M, int P, int Cache>
static void tile_panels(const uint32_t* tile, const char* panel, int64_t panel_bytes, int64_t steps, int64_t panels,
                        Ahead ahead, float* sums, int64_t sums_stride) {
  const auto next = [&](int64_t count) {
    panel += count * panel_bytes;
    ahead.from += count * panel_bytes;
    sums += count * kPanel;
    panels -= count;
  };
  for (; panels >= P; next(P)) tile_product<Panel, M, P, Cache>(tile, panel, panel_bytes, steps, ahead, sums, sums_stride);
  for (; panels > 0; next(1)) tile_product<Panel, M, 1, Cache>(tile, panel, panel_bytes, steps, ahead, sums, sums_stride);
}

typedef void (*TilePanels)(const uint32_t*, const char*, int64_t, int64_t, int64_t, Ahead, float*, int64_t);

template <class Panel, int M, int Cache>
constexpr TilePanels tile_panels_of() {
  return tile_panels<Panel, M, panels_at_once(M), Cache>;
}

template <class Panel, int Cache>
static TilePanels tile_panels_for(int64_t rows) {
  static constexpr TilePanels functions[] = {
      tile_panels_of<Panel, 1, Cache>(), tile_panels_of<Panel, 2, Cache>(), tile_panels_of<Panel, 3, Cache>(),
      tile_panels_of<Panel, 4, Cache>(), tile_panels_of<Panel, 5, Cache>(), tile_panels_of<Panel, 6, Cache>(),
#if defined(__AVX512F__) || defined(__aarch64__)
      tile_panels_of<Panel, 7, Cache>(), tile_panels_of<Panel, 8, Cache>(), tile_panels_of<Panel, 9, Cache>(),
      tile_panels_of<Panel, 10, Cache>(), tile_panels_of<Panel, 11, Cache>(), tile_panels_of<Panel, 12, Cache>(),
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

// Sums of a row's products with bytes as float: those of a rounded row are integers, which get the row's scale, without
// what was added to each weight.
template <class Panel>
static inline Vec as_float(Vec sum, const RowFacts& facts) {
  if constexpr (std::is_same<Panel, PanelDynamic>::value) {
    const Words shifted = broadcast_word((uint32_t)(facts.bytes * PanelDynamic::kShift));
    return __builtin_convertvector((Ints)((Words)sum - shifted), Vec) * broadcast(facts.scale);
  }
  return sum;
}

// What products with bytes stand for, while they are in the cache: scale * sum(x * q) + offset * sum(x).
template <class Panel>
static inline void scale_sums(const Job& job, int64_t row, int64_t rows, int64_t p, int64_t panels) {
  for (int64_t last = row + rows; row < last; ++row) {
    const RowFacts& facts = job.facts[row];
    const Vec total = broadcast(facts.sum);
    for (int64_t column = p * kPanel; column < (p + panels) * kPanel; column += kLanes) {
      float* at = job.sums + row * job.sums_stride + column;
      const Vec scaled = as_float<Panel>(load<Vec>(at), facts) * load<Vec>(job.matrix.scale.get() + column);
      store(at, fma(total, load<Vec>(job.matrix.offset.get() + column), scaled));
    }
  }
}

// Bytes before a group's steps: each column's scale, then each one's offset.
constexpr int64_t kScaleBytes = 2 * kPanel * (int64_t)sizeof(float);

template <class Panel>
static inline int64_t group_bytes(int64_t group) {
  return kScaleBytes + group / Panel::kDepth * Panel::kStep;
}

// A group's part of what products with a panel stand for, onto that of the groups before it. facts: the first row's for
// this group, `groups` apart; products and totals: [rows][stride].
template <class Panel>
static inline void add_group(const RowFacts* facts, int64_t groups, int64_t rows, const char* scales,
                             const float* products, float* totals, int64_t stride) {
  for (int64_t column = 0; column < kPanel; column += kLanes) {
    const Vec scale = load<Vec>(scales + column * sizeof(float));
    const Vec offset = load<Vec>(scales + (kPanel + column) * sizeof(float));
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t at = m * stride + column;
      const Vec before = fma(broadcast(facts[m * groups].sum), offset, load<Vec>(totals + at));
      store(totals + at, fma(as_float<Panel>(load<Vec>(products + at), facts[m * groups]), scale, before));
    }
  }
}

// One tile of a matrix with groups: each group's products are a chain of their own, and the groups' parts another. They are
// added up side by side: rows of sums may lie a power of two apart, where a few fill all that a cache has for an address.
template <class Panel, int Cache>
static void grouped_tile(const Job& job, const Tiling& tiling, int64_t tile, int64_t first, int64_t panels,
                         Ahead ahead) {
  const Matrix& matrix = job.matrix;
  const Inputs inputs = matrix.inputs();
  const int64_t row = tiling.first(tile), rows = tiling.rows(tile), bytes = group_bytes<Panel>(matrix.group);
  const uint32_t* words = job.tiles + row * tile_width(matrix.in);
  const int64_t group_words = matrix.group / Panel::kDepth * Panel::kWords * rows;
  const TilePanels product = tile_panels_for<Panel, Cache>(rows);
  alignas(64) float products[kAccumulators * kLanes], totals[kAccumulators * kLanes];
  for (int64_t p = first, together; p < first + panels; p += together) {
    together = panels_at_once((int)rows);
    if (together > first + panels - p) together = first + panels - p;
    const int64_t columns = together * kPanel;
    memset(totals, 0, (size_t)(rows * columns) * sizeof(float));
    for (int64_t g = 0; g < inputs.groups(); ++g) {
      const char* from = matrix.data.get() + p * matrix.panel_bytes + g * bytes;
      const int64_t steps = (inputs.last(g) - inputs.first(g) + Panel::kDepth - 1) / Panel::kDepth;
      const Ahead then{ahead.from + (p - first) * matrix.panel_bytes + g * bytes * ahead.step / Panel::kStep,
                       ahead.step};
      product(words + g * group_words, from + kScaleBytes, matrix.panel_bytes, steps, together, then, products, columns);
      for (int64_t i = 0; i < together; ++i)
        add_group<Panel>(job.facts + row * inputs.groups() + g, inputs.groups(), rows, from + i * matrix.panel_bytes,
                         products + i * kPanel, totals + i * kPanel, columns);
    }
    for (int64_t m = 0; m < rows; ++m)
      memcpy(job.sums + (row + m) * job.sums_stride + p * kPanel, totals + m * columns, (size_t)columns * sizeof(float));
  }
}

template <class Panel, int Cache>
static void one_tile(const Job& job, const Tiling& tiling, int64_t tile, int64_t p, int64_t panels, Ahead ahead) {
  const Matrix& matrix = job.matrix;
  if constexpr (Panel::kScaled)
    if (matrix.grouped()) return grouped_tile<Panel, Cache>(job, tiling, tile, p, panels, ahead);
  const int64_t row = tiling.first(tile), steps = (matrix.in + Panel::kDepth - 1) / Panel::kDepth;
  tile_panels_for<Panel, Cache>(tiling.rows(tile))(job.tiles + row * tile_width(matrix.in),
                                            matrix.data.get() + p * matrix.panel_bytes, steps * Panel::kStep, steps,
                                            panels, ahead, job.sums + row * job.sums_stride + p * kPanel,
                                            job.sums_stride);
  if constexpr (Panel::kScaled) scale_sums<Panel>(job, row, tiling.rows(tile), p, panels);
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
      one_tile<Panel, kFirst>(job, tiling, start, job.begin, job.end - job.begin, {from + kAhead, Panel::kStep});
      continue;
    }
    // With several tiles a panel is used by each of them while it is in the cache, and each asks for a part of the next
    // panel: so memory is read all the time, not only by the first of them. For two tiles it waits in the second-level cache:
    // sixteen rows of an expert take 10% less time than with panels that push each other out of the first; from three on the
    // arithmetic takes longer than memory, and asking for the first takes 2% less (Zen 4).
    const auto tile_of = tiles == 2 ? one_tile<Panel, kSecond> : one_tile<Panel, kFirst>;
    for (int64_t p = job.begin; p < job.end; ++p) {
      const char* next = matrix.data.get() + (p + 1 < matrix.panels ? p + 1 : p) * matrix.panel_bytes;
      for (int64_t tile = 0; tile < tiles; ++tile)
        tile_of(job, tiling, start + tile, p, 1,
                {next + matrix.panel_bytes * tile / tiles, (Panel::kStep + tiles - 1) / tiles});
    }
  }
}

}  // namespace MOE_VARIANT
