// Packing a matrix for a variant, and sharing its panels out among threads.
#pragma once

#include "matrix.h"

// Checks the source and packs it. Returns 0, or 1 and a message.
int32_t pack_matrix(const Variant& variant, const moe_matrix& source, Matrix& matrix, char* error, int64_t error_size);

// Of a handle of moe_linear_pack.
int64_t linear_outputs(const void* handle);

// Threads worth waking for the products of n rows with so many panels of matrices of one shape. A thread that sleeps
// begins after some fifty microseconds, and takes its core from whoever else could use it: an expert, where the caller is
// a router on the same machine.
int32_t threads_worth(const Matrix& shape, int64_t panel, int64_t panels, int64_t n, int32_t threads);

// Panels cut into shares, several for each thread so that a slow one holds nobody up, but none too small to be worth it.
struct Shares {
  int64_t count, panels;

  // panel_work: multiply-adds of one panel.
  Shares(int64_t panels, int64_t panel_work, int32_t threads);
  int64_t begin(int64_t share) const { return panels * share / count; }
};
