// A packed weight, and the functions that one instruction set offers on it.
//
// Layout: panels of `panel` output columns, one after the other, each [in][panel] elements. The last panel is filled up
// with zeros. A panel is read from front to back whatever the number of rows.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <memory>

#include "abi.h"

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

struct Matrix {
  int32_t dtype = 0;
  int64_t out = 0, in = 0, panels = 0, panel_bytes = 0;
  Memory<char> data;
  Memory<float> scale, offset;  // [panels * panel], for MOE_INT8

  int64_t bytes() const { return panels * panel_bytes; }
};

// One slot of a row on its way into the partial.
struct SlotOutput {
  const float* sums;  // [padded hidden], what the projection down made
  const float* bias;  // [padded hidden] or null
  float weight;
};

// A row that attends: its query heads' elements, where its result goes, and its keys (tokens first to end of a slot).
struct AttentionRow {
  const void* query;
  int64_t query_head_stride;
  void* out;
  int64_t slot, first, end;
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

// Rows as products read them: tiles of up to tile_rows rows, each [in][rows of the tile], float32.
struct Variant {
  const char* name;
  int32_t panel;
  int32_t tile_rows;

  // Fills matrix.data (and scale, offset); sizes are set and memory is there.
  void (*pack)(const moe_matrix& source, Matrix& matrix);

  // Copies rows first to last (a row's address is rows + (index ? index[i] : i) * row_stride elements) into tiles.
  void (*gather)(const void* rows, int32_t dtype, int64_t row_stride, const int32_t* index, int64_t n, int64_t in,
                 float* tiles);

  // sums [n][sums_stride]: products of n rows with panels begin to end, starting at column begin * panel.
  // row_sums: float [n], sums of the tiles' rows, read for MOE_INT8 only.
  void (*product)(const Matrix& matrix, const float* tiles, const float* row_sums, int64_t n, int64_t begin,
                  int64_t end, float* sums, int64_t sums_stride);

  // The sum of each row in tiles, along `in` in order; [n].
  void (*row_sums)(const float* tiles, int64_t n, int64_t in, float* sums);

  // out [n][out_stride], columns begin to end: sums + bias (or null), rounded to dtype.
  void (*finish)(const float* sums, int64_t sums_stride, const float* bias, int64_t n, int64_t begin, int64_t end,
                 void* out, int32_t dtype, int64_t out_stride);

  // The activation of rows first to last of sums [n][sums_stride] (bias [sums_stride] or null) into tiles of n rows.
  void (*activate)(const moe_ffn& formula, const float* sums, int64_t sums_stride, const float* bias, int64_t n,
                   int64_t first, int64_t last, float* tiles);

  // One row of the partial, from its slots in their order.
  void (*combine)(const moe_ffn& formula, const SlotOutput* slots, int64_t count, int32_t weights_dtype, void* partial,
                  int32_t partial_dtype);

  // Floats of scratch that `attend` needs for this many query heads and keys.
  int64_t (*attention_scratch)(const moe_cache& cache, int64_t heads, int64_t keys);

  // Query heads first to last - 1 of a row, which share key head `head`.
  void (*attend)(const moe_cache& cache, const AttentionRow& row, int64_t head, int64_t first, int64_t last,
                 float* scratch);

  // One row.
  void (*rms_norm)(const void* from, int32_t dtype, const float* weight, int64_t width, float epsilon, bool round_first,
                   void* to);
};

// Variants that this processor can run, worst first.
int32_t variant_count();
const Variant& variant_at(int32_t place);
