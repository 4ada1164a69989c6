// A packed weight, and the functions that one instruction set offers on it.
//
// Layout: panels of `panel` output columns, one after the other, each [in][panel] elements, several inputs of a column
// side by side where instructions add them up at once (`depth` of the variant). What is missing of the last panel and the
// last step is zeros. Of bytes with several groups of inputs, a panel holds the groups one after the other, each behind the
// scales and then the offsets of its columns, as floats. A panel is read from front to back whatever the number of rows.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <memory>

#include "abi.h"
#include "scalars.h"

struct Free {
  void operator()(void* memory) const { free(memory); }
};

template <class T>
using Memory = std::unique_ptr<T[], Free>;

// Cache-line-aligned memory, or null.
template <class T>
Memory<T> allocate(int64_t count) {
  const size_t bytes = ((size_t)(count > 0 ? count : 1) * sizeof(T) + 63) / 64 * 64;
  return Memory<T>(static_cast<T*>(aligned_alloc(64, bytes)));
}

// Inputs of a row, and how many of them share a scale of their weights: groups of `group`, the last may be smaller.
struct Inputs {
  int64_t count, group;

  int64_t groups() const { return (count + group - 1) / group; }
  int64_t first(int64_t g) const { return g * group; }
  int64_t last(int64_t g) const { return count < (g + 1) * group ? count : (g + 1) * group; }
};

struct Matrix {
  int32_t dtype = 0;
  int64_t out = 0, in = 0, panels = 0, panel_bytes = 0;
  int64_t group = 0;  // inputs that share a scale: `in` for one group
  std::shared_ptr<char> data;
  Memory<float> scale, offset;  // [panels * panel], for bytes of one group

  bool of_bytes() const { return is_bytes(dtype); }
  int64_t bytes() const { return panels * panel_bytes; }
  Inputs inputs() const { return {in, group}; }
  bool grouped() const { return group < in; }
};

// One slot of a row on its way into the partial.
struct SlotOutput {
  const float* sums;  // [padded hidden], what the projection down made
  const float* bias;  // [padded hidden] or null
  float weight;
};

// A row that attends: its query heads' elements, where its result goes, and its keys (tokens first to end of its slot).
struct AttentionRow {
  const void* query;
  int64_t query_head_stride;
  void* out;
  int64_t first, end;
};

// Rows of one slot that attend together.
struct AttentionTile {
  const AttentionRow* rows;
  int64_t count, slot;
};

// How n rows are cut into tiles: as few as possible, their heights differing by one at most, higher ones first.
struct Tiling {
  int64_t tiles, height, higher;

  Tiling(int64_t n, int64_t tile_rows) : tiles((n + tile_rows - 1) / tile_rows) {
    height = tiles ? n / tiles : 0;
    higher = tiles ? n % tiles : 0;
  }
  int64_t rows(int64_t tile) const { return height + (tile < higher); }
  int64_t first(int64_t tile) const { return tile * height + (tile < higher ? tile : higher); }
};

// Rows as products read them: tiles of up to tile_rows rows, each [words][rows of the tile], tile_width(in) words for a
// row, zeros from `in` on. What a word holds is decided by the matrix and the rows' type:
enum class Tiles {
  kFloats,  // one input as float32
  kPairs,   // two inputs as bfloat16, the first in the lower half
  kBytes,   // inputs rounded to signed bytes with a scale per row: four of them, or two as int16
};

inline int64_t tile_width(int64_t in) { return (in + 3) / 4 * 4; }

// What of a row its product with a group's bytes needs. sum: of its inputs, in one order. scale: of kBytes, the whole row's,
// NaN for a row that holds no finite numbers. bytes: the sum of the rounded inputs.
struct RowFacts {
  float sum, scale;
  int32_t bytes;
};

struct Variant {
  const char* name;
  int32_t panel;
  int32_t tile_rows;

  // Inputs that lie side by side in a matrix of this dtype; its panels hold a multiple of them.
  int64_t (*depth)(int32_t dtype);

  // How a matrix of this dtype reads rows of that one.
  Tiles (*tiles)(int32_t matrix_dtype, int32_t rows_dtype);

  // Fills matrix.data (and scale, offset where there is room for them); sizes are set and memory is there.
  void (*pack)(const moe_matrix& source, Matrix& matrix);

  // Copies rows first to last (a row's address is rows + (index ? index[i] : i) * row_stride elements) into tiles.
  // facts: [n][groups], written where not null.
  void (*gather)(const void* rows, int32_t dtype, int64_t row_stride, const int32_t* index, int64_t n, Inputs inputs,
                 Tiles kind, uint32_t* tiles, RowFacts* facts);

  // sums [n][sums_stride]: products of n rows with panels begin to end, starting at column begin * panel.
  // facts: [n][groups], read for matrices of bytes only.
  void (*product)(const Matrix& matrix, Tiles kind, const uint32_t* tiles, const RowFacts* facts, int64_t n,
                  int64_t begin, int64_t end, float* sums, int64_t sums_stride);

  // out [n][out_stride], columns begin to end: sums + bias (or null), rounded to dtype.
  void (*finish)(const float* sums, int64_t sums_stride, const float* bias, int64_t n, int64_t begin, int64_t end,
                 void* out, int32_t dtype, int64_t out_stride);

  // The activation of rows first to last of sums [n][sums_stride] (bias [sums_stride] or null) into tiles of n rows, and
  // facts [n][groups] where not null. group: of the matrix that reads the tiles. Overwrites these rows of sums.
  void (*activate)(const moe_ffn& formula, float* sums, int64_t sums_stride, const float* bias, int64_t n,
                   int64_t first, int64_t last, Tiles kind, int64_t group, uint32_t* tiles, RowFacts* facts);

  // One row of the partial, from its slots in their order.
  void (*combine)(const moe_ffn& formula, const SlotOutput* slots, int64_t count, int32_t weights_dtype, void* partial,
                  int32_t partial_dtype);

  // Floats of scratch that `attend` needs for this many queries (a head of a row each) with at most so many keys.
  int64_t (*attention_scratch)(const moe_cache& cache, int64_t queries, int64_t keys);

  // Query heads first to last - 1 of a tile's rows, which share key head `head`.
  void (*attend)(const moe_cache& cache, const AttentionTile& tile, int64_t head, int64_t first, int64_t last,
                 float* scratch);

  // One row.
  void (*rms_norm)(const void* from, int32_t dtype, const float* weight, int64_t width, float epsilon, bool round_first,
                   void* to);

  // out = a + b, rounded once.
  void (*add)(const void* a, const void* b, int32_t dtype, int64_t count, void* out);

  // One head in place: its first 2 * half elements turned by the angles of a position (Su et al., RoFormer, section 3.2),
  // element i with element i + half. cos and sin of the second half's are `second` elements after the first's.
  void (*rotate)(void* head, int32_t dtype, const void* cos, const void* sin, int64_t half, int64_t second);
};

// Variants that this processor can run, worst first.
int32_t variant_count();
const Variant& variant_at(int32_t place);
