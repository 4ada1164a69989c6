// A packed linear layer: pack once, then rows times weight plus bias.

#include <new>

#include "errors.h"
#include "pack.h"
#include "pool.h"
#include "scalars.h"
#include "scratch.h"

namespace {

struct Linear {
  const Variant& variant;
  Matrix weight;
  Memory<float> bias;
};

// Scratch of a call grows with its rows; more rows than this go through one after the other.
constexpr int64_t kRowsAtOnce = 768;

struct Call {
  const Linear& linear;
  const char* rows;
  int32_t rows_dtype;
  int64_t row_stride;
  char* out;
  int32_t out_dtype;
  int64_t out_stride;
  int32_t threads;
};

// False when memory is short.
bool run_rows(const Call& call, int64_t first, int64_t n) {
  const Linear& linear = call.linear;
  const Matrix& weight = linear.weight;
  const Variant& variant = linear.variant;
  const int64_t padded = weight.panels * variant.panel;
  const int64_t width = tile_width(weight.in), facts_of_rows = weight.of_bytes() ? n * weight.inputs().groups() : 0;
  Scratch& scratch = Scratch::of_this_thread();
  if (!scratch.reserve(Scratch::size<uint32_t>(n * width) + Scratch::size<float>(n * padded) +
                       Scratch::size<RowFacts>(facts_of_rows)))
    return false;
  uint32_t* tiles = scratch.take<uint32_t>(n * width);
  float* sums = scratch.take<float>(n * padded);
  RowFacts* facts = facts_of_rows ? scratch.take<RowFacts>(facts_of_rows) : nullptr;
  const Tiles kind = variant.tiles(weight.dtype, call.rows_dtype);
  variant.gather(call.rows + first * call.row_stride * size_of(call.rows_dtype), call.rows_dtype, call.row_stride,
                 nullptr, n, weight.inputs(), kind, tiles, facts);
  const int32_t threads = threads_worth(weight, variant.panel, weight.panels, n, call.threads);
  const Shares shares(weight.panels, n * weight.in * variant.panel, threads);
  parallel(threads, shares.count, [&](int64_t share) {
    const int64_t begin = shares.begin(share), end = shares.begin(share + 1);
    variant.product(weight, kind, tiles, facts, n, begin, end, sums, padded);
    const int64_t last = end * variant.panel < weight.out ? end * variant.panel : weight.out;
    variant.finish(sums, padded, linear.bias.get(), n, begin * variant.panel, last,
                   call.out + first * call.out_stride * size_of(call.out_dtype), call.out_dtype, call.out_stride);
  });
  return true;
}

}  // namespace

int32_t moe_linear_pack(int32_t variant, const moe_matrix* weight, const float* bias, void** handle, char* error,
                        int64_t error_size) {
  if (variant < 0 || variant >= variant_count())
    return fail(error, error_size, "variant: got %d, this processor runs 0 to %d", variant, variant_count() - 1);
  Linear* linear = new (std::nothrow) Linear{variant_at(variant), {}, {}};
  if (!linear) return fail(error, error_size, "not enough memory");
  std::unique_ptr<Linear> owner(linear);
  if (pack_matrix(linear->variant, *weight, linear->weight, error, error_size)) return 1;
  if (bias) {
    linear->bias = allocate<float>(weight->out);
    if (!linear->bias) return fail(error, error_size, "not enough memory for a bias of %lld", (long long)weight->out);
    memcpy(linear->bias.get(), bias, (size_t)weight->out * sizeof(float));
  }
  *handle = owner.release();
  return 0;
}

void moe_linear_free(void* handle) { delete static_cast<Linear*>(handle); }

int64_t linear_outputs(const void* handle) { return static_cast<const Linear*>(handle)->weight.out; }

int64_t moe_linear_bytes(const void* handle) { return static_cast<const Linear*>(handle)->weight.bytes(); }

int32_t moe_linear_run(const void* handle, const void* rows, int32_t rows_dtype, int64_t n, int64_t row_stride,
                       void* out, int32_t out_dtype, int64_t out_stride, int32_t threads, char* error,
                       int64_t error_size) {
  if (!is_float(rows_dtype) || !is_float(out_dtype))
    return fail(error, error_size, "rows and out: got dtypes %d and %d, want float32, bfloat16 or float16", rows_dtype,
                out_dtype);
  const Call call{*static_cast<const Linear*>(handle), static_cast<const char*>(rows), rows_dtype, row_stride,
                  static_cast<char*>(out), out_dtype, out_stride, threads};
  for (int64_t first = 0; first < n; first += kRowsAtOnce)
    if (!run_rows(call, first, n - first < kRowsAtOnce ? n - first : kRowsAtOnce))
      return fail(error, error_size, "not enough memory for %lld rows", (long long)n);
  Scratch::of_this_thread().trim();
  return 0;
}
