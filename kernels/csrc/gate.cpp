// A gate that takes the k largest shares of a softmax: product, softmax, choice and normalisation in one call.

#include <math.h>

#include "errors.h"
#include "pack.h"
#include "pool.h"
#include "scalars.h"
#include "scratch.h"

namespace {

constexpr int64_t kWorthSharing = 1 << 13;  // shares of softmaxes; below, other threads are not woken

struct Choice {
  const char* logits;
  int64_t experts, k;
  int32_t dtype;
  bool normalise;
  char* weights;
  int32_t weights_dtype;
  int64_t* index;
};

// NaN comes first, as in moe.kernels.topk.
bool greater(float a, float b) { return a > b || (isnan(a) && !isnan(b)); }

// shares: [experts], chosen: [k], of scratch.
void choose(const Choice& choice, int64_t row, float* shares, float* chosen) {
  const char* logits = choice.logits + row * choice.experts * size_of(choice.dtype);
  float greatest = -INFINITY, sum = 0;
  for (int64_t e = 0; e < choice.experts; ++e) {
    shares[e] = widened_at(logits + e * size_of(choice.dtype), choice.dtype);
    if (greater(shares[e], greatest)) greatest = shares[e];
  }
  for (int64_t e = 0; e < choice.experts; ++e) sum += shares[e] = expf(shares[e] - greatest);
  for (int64_t e = 0; e < choice.experts; ++e) shares[e] /= sum;
  char* weights = choice.weights + row * choice.k * size_of(choice.weights_dtype);
  int64_t* index = choice.index + row * choice.k;
  float total = 0;
  // The first of equals. What is taken is below all shares.
  for (int64_t i = 0; i < choice.k; ++i) {
    int64_t best = 0;
    for (int64_t e = 1; e < choice.experts; ++e)
      if (greater(shares[e], shares[best])) best = e;
    index[i] = best;
    chosen[i] = shares[best];
    total += chosen[i];
    shares[best] = -1;
  }
  for (int64_t i = 0; i < choice.k; ++i)
    narrow_to(weights + i * size_of(choice.weights_dtype), choice.weights_dtype,
              choice.normalise ? chosen[i] / total : chosen[i]);
}

}  // namespace

int32_t moe_gate(const void* linear, const void* rows, int32_t dtype, int64_t n, int64_t row_stride, int64_t k,
                 int32_t normalise, void* logits, void* weights, int32_t weights_dtype, int64_t* index, int32_t threads,
                 char* error, int64_t error_size) {
  const int64_t experts = linear_outputs(linear);
  if (k < 1 || k > experts)
    return fail(error, error_size, "k: got %lld, want 1 to %lld", (long long)k, (long long)experts);
  if (!is_float(weights_dtype))
    return fail(error, error_size, "weights: got dtype %d, want float32, bfloat16 or float16", weights_dtype);
  if (moe_linear_run(linear, rows, dtype, n, row_stride, logits, dtype, experts, threads, error, error_size)) return 1;
  const Choice choice{static_cast<const char*>(logits), experts,       k,    dtype, normalise != 0,
                      static_cast<char*>(weights),      weights_dtype, index};
  const int32_t used = n * experts < kWorthSharing ? 1 : threads;
  Scratch& scratch = Scratch::of_this_thread();
  const int64_t each = Scratch::size<float>(experts + k);  // of a thread, on cache lines of its own
  if (!scratch.reserve(used * each))
    return fail(error, error_size, "not enough memory for %lld experts", (long long)experts);
  char* memory = scratch.take<char>(used * each);
  parallel(used, used, [&](int64_t share) {
    float* shares = reinterpret_cast<float*>(memory + share * each);
    for (int64_t row = n * share / used; row < n * (share + 1) / used; ++row)
      choose(choice, row, shares, shares + experts);
  });
  return 0;
}
