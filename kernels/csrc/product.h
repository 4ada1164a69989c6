// The products. One output element is one chain along `in`, from the first to the last, whatever the number of rows, the
// tile they lie in and the thread: so the bits of a row depend on the row alone. Its links are a fused multiply-add in
// float32, or where MOE_DOTS is set and rows are bfloat16 an instruction that takes two inputs.
//
// One row is bound by reading the weights, which one stream does fastest: a panel at a time (Zen 4: a tenth less time than
// four panels at once; its two chains take a line in three cycles, far above the speed of memory). Several rows are bound by
// arithmetic: a tile of kTileRows rows by one panel keeps all accumulators in registers; a panel is widened as it is
// loaded, which mostly costs nothing beside the multiply-adds (Zen 3: shifts go to ports that they leave free). Where it
// takes byte tables, the first of several tiles keeps what it has widened for those after it (Panel::Wide): the same
// words, so the same bits. Rows go in blocks that stay in the second-level cache while the panels pass by.
#pragma once

#include <type_traits>

#include "panels.h"
#include "scratch.h"

namespace MOE_VARIANT {

constexpr int64_t kBlockBytes = 192 << 10;

// Room for a widened panel: of 4096 inputs in bfloat16, beside a block of rows in a second-level cache of 512 KiB.
constexpr int64_t kMostWidened = 256 << 10;

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

// A panel that keeps the weights of each step at `widened`, as Panel::Wide reads them.
template <class Panel>
struct Keeping : Panel {
  static constexpr bool kKeeps = true;
};

// Sums of a row's products with bytes as float: those of a rounded row are integers, which get the row's scale, without
// what was added to each weight.
template <class Panel>
static inline Vec as_float(Vec sum, const RowFacts& facts) {
  if constexpr (std::is_base_of<PanelDynamic, Panel>::value) {
    const Words shifted = broadcast_word((uint32_t)(facts.bytes * PanelDynamic::kShift));
    return __builtin_convertvector((Ints)((Words)sum - shifted), Vec) * broadcast(facts.scale);
  }
  return sum;
}

// What sums of bytes of one group need to become what they stand for: the facts of a tile's first row, and the scales and
// offsets of a panel's first column.
struct Scaling {
  const RowFacts* facts;
  const float *scale, *offset;
};

// Panels of such bytes, whose sums get there before they leave the registers: scale * sum(x * q) + offset * sum(x). Written
// first and scaled then, they filled the store buffer (a twentieth of a tile's time). Not those of rounded rows: GCC 12 keeps
// sums that are integers in the loop and floats after it twice, one of them in memory (a third more of a tile's time).
template <class Panel>
struct Whole : Panel {
  static constexpr bool kWhole = true;
};

template <class Panel>
static inline Vec scaled(Vec sum, const Scaling* scaling, int64_t m, int64_t column) {
  if constexpr (Panel::kWhole) {
    const RowFacts& facts = scaling->facts[m];
    const Vec products = as_float<Panel>(sum, facts) * load<Vec>(scaling->scale + column);
    return fma(broadcast(facts.sum), load<Vec>(scaling->offset + column), products);
  }
  return sum;
}

// One tile of M rows times P neighbouring panels.
template <class Panel, int M, int P, int Cache>
static inline void tile_product(const uint32_t* tile, const char* panel, int64_t panel_bytes, int64_t steps,
                                const Ahead& ahead, char* widened, const Scaling* scaling, int64_t column, float* sums,
                                int64_t sums_stride) {
  Vec low[M][P] = {}, high[M][P] = {};
  if constexpr (Panel::kWhole)
    for (int64_t j = column; j < column + P * kPanel; j += 16) {
      __builtin_prefetch(scaling->scale + j);
      __builtin_prefetch(scaling->offset + j);
    }
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
    if constexpr (Panel::kKeeps) {
      static_assert(P == 1, "room for one panel");
      Panel::Wide::keep(widened + s * Panel::Wide::kStep, weights[0]);
    }
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
      const int64_t at = p * kPanel;
      store(sums + m * sums_stride + at, scaled<Panel>(low[m][p], scaling, m, column + at));
      store(sums + m * sums_stride + at + kLanes, scaled<Panel>(high[m][p], scaling, m, column + at + kLanes));
    }
  }
}

// For several rows as many panels at once as there are accumulators for.
constexpr int panels_at_once(int rows) {
  return rows == 1 ? 1 : 4 * 2 * rows <= kAccumulators ? 4 : 2 * 2 * rows <= kAccumulators ? 2 : 1;
}

// widened: for Keeping panels, of which there is one. scaling: for Whole ones. (No struct for all this: copied for a call,
// it was read in one piece before its parts had left the store buffer, behind the last tile's sums: 200 cycles a tile.)
template <class Panel, int M, int P, int Cache>
static void tile_panels(const uint32_t* tile, const char* panel, int64_t panel_bytes, int64_t steps, int64_t panels,
                        Ahead ahead, char* widened, const Scaling* scaling, float* sums, int64_t sums_stride) {
  int64_t column = 0;
  const auto next = [&](int64_t count) {
    panel += count * panel_bytes;
    ahead.from += count * panel_bytes;
    sums += count * kPanel;
    column += count * kPanel;
    panels -= count;
  };
  for (; panels >= P; next(P))
    tile_product<Panel, M, P, Cache>(tile, panel, panel_bytes, steps, ahead, widened, scaling, column, sums, sums_stride);
  for (; panels > 0; next(1))
    tile_product<Panel, M, 1, Cache>(tile, panel, panel_bytes, steps, ahead, widened, scaling, column, sums, sums_stride);
}

typedef void (*TilePanels)(const uint32_t*, const char*, int64_t, int64_t, int64_t, Ahead, char*, const Scaling*,
                           float*, int64_t);

template <class Panel, int M, int Cache>
constexpr TilePanels tile_panels_of() {
  return tile_panels<Panel, M, Panel::kKeeps ? 1 : panels_at_once(M), Cache>;
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
      product(words + g * group_words, from + kScaleBytes, matrix.panel_bytes, steps, together, then, nullptr,
              nullptr, products, columns);
      for (int64_t i = 0; i < together; ++i)
        add_group<Panel>(job.facts + row * inputs.groups() + g, inputs.groups(), rows, from + i * matrix.panel_bytes,
                         products + i * kPanel, totals + i * kPanel, columns);
    }
    for (int64_t m = 0; m < rows; ++m)
      memcpy(job.sums + (row + m) * job.sums_stride + p * kPanel, totals + m * columns, (size_t)columns * sizeof(float));
  }
}

template <class Panel>
static inline int64_t steps_of(const Matrix& matrix) {
  return (matrix.in + Panel::kDepth - 1) / Panel::kDepth;
}

// The lines that one panel's sums go to have left the caches since the last call, and may all lie in one set of them: they
// are asked for while the products are computed (2% of 32 rows an expert, Zen 4).
static inline void prefetch_sums(const float* sums, int64_t stride, int64_t rows) {
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t column = 0; column < kPanel; column += 16) __builtin_prefetch(sums + m * stride + column, 1);
}

// One tile of a matrix without groups. from: where panel p lies, as Stored reads it.
template <class Panel, class Stored, int Cache>
static void whole_tile(const Job& job, const Tiling& tiling, int64_t tile, int64_t p, int64_t panels, const char* from,
                       Ahead ahead, char* widened = nullptr) {
  constexpr bool kRounded = std::is_base_of<PanelDynamic, Panel>::value;
  typedef typename std::conditional<Panel::kScaled && !kRounded, Whole<Stored>, Stored>::type Summed;
  const Matrix& matrix = job.matrix;
  const int64_t row = tiling.first(tile), rows = tiling.rows(tile), column = p * kPanel;
  Scaling scaling{};
  if (Panel::kScaled) scaling = {job.facts + row, matrix.scale.get() + column, matrix.offset.get() + column};
  float* sums = job.sums + row * job.sums_stride + column;
  if (panels == 1) prefetch_sums(sums, job.sums_stride, rows);
  tile_panels_for<Summed, Cache>(rows)(job.tiles + row * tile_width(matrix.in), from, matrix.panel_bytes,
                                       steps_of<Panel>(matrix), panels, ahead, widened, &scaling, sums,
                                       job.sums_stride);
  if constexpr (kRounded)
    for (int64_t m = 0; m < rows; ++m)
      for (int64_t at = 0; at < panels * kPanel; at += kLanes) {
        float* sum = sums + m * job.sums_stride + at;
        store(sum, scaled<Whole<Panel>>(load<Vec>(sum), &scaling, m, at));
      }
}

template <class Panel, int Cache>
static void one_tile(const Job& job, const Tiling& tiling, int64_t tile, int64_t p, int64_t panels, Ahead ahead) {
  const Matrix& matrix = job.matrix;
  if constexpr (Panel::kScaled)
    if (matrix.grouped()) return grouped_tile<Panel, Cache>(job, tiling, tile, p, panels, ahead);
  whole_tile<Panel, Panel, Cache>(job, tiling, tile, p, panels, matrix.data.get() + p * matrix.panel_bytes, ahead);
}

// Room for a panel of this matrix as Panel::Wide; null where there is no such thing, or it would be too large to stay in a
// second-level cache, or memory is short: then each tile widens for itself.
template <class Panel>
static char* room_to_widen(const Matrix& matrix) {
  if constexpr (!std::is_same<Panel, typename Panel::Wide>::value) {
    const int64_t bytes = steps_of<Panel>(matrix) * Panel::Wide::kStep;
    if (matrix.grouped() || bytes > kMostWidened) return nullptr;
    Scratch& scratch = Scratch::of_this_task();
    if (scratch.reserve(bytes)) return scratch.take<char>(bytes);
  }
  return nullptr;
}

// The same as one_tile with one panel, of which the first tile leaves a copy for the others.
template <class Panel, int Cache>
static void widened_tile(const Job& job, const Tiling& tiling, int64_t tile, bool first, int64_t p, Ahead ahead,
                         char* widened) {
  if constexpr (!std::is_same<Panel, typename Panel::Wide>::value) {
    const char* stored = job.matrix.data.get() + p * job.matrix.panel_bytes;
    if (first) return whole_tile<Panel, Keeping<Panel>, Cache>(job, tiling, tile, p, 1, stored, ahead, widened);
    whole_tile<Panel, typename Panel::Wide, Cache>(job, tiling, tile, p, 1, widened, ahead);
  }
}

// Panel p times several tiles, from `start` on. Each of them uses it while it is in the cache, and asks for a part of the
// next panel: so memory is read all the time, not only by the first of them.
template <class Panel, int Cache>
static void one_panel(const Job& job, const Tiling& tiling, int64_t start, int64_t tiles, int64_t p, char* widened) {
  const Matrix& matrix = job.matrix;
  const char* next = matrix.data.get() + (p + 1 < matrix.panels ? p + 1 : p) * matrix.panel_bytes;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const Ahead ahead{next + matrix.panel_bytes * tile / tiles, (Panel::kStep + tiles - 1) / tiles};
    if (widened) {
      widened_tile<Panel, Cache>(job, tiling, start + tile, tile == 0, p, ahead, widened);
    } else {
      one_tile<Panel, Cache>(job, tiling, start + tile, p, 1, ahead);
    }
  }
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
    // For two tiles the next panel waits in the second-level cache: sixteen rows of an expert take 10% less time than with
    // panels that push each other out of the first; from three on the arithmetic takes longer than memory, and asking for
    // the first takes 2% less (Zen 4).
    const auto panel_of = tiles == 2 ? one_panel<Panel, kSecond> : one_panel<Panel, kFirst>;
    char* widened = room_to_widen<Panel>(matrix);
    for (int64_t p = job.begin; p < job.end; ++p) panel_of(job, tiling, start, tiles, p, widened);
  }
}

}  // namespace MOE_VARIANT
