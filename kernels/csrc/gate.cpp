// A gate that takes the k largest shares of a softmax: product, softmax, choice and normalisation in one call.

#include <math.h>

#include "errors.h"
#include "matrix.h"
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

float widened(const char* from, int32_t dtype, int64_t place) {
  if (dtype == MOE_FLOAT32) return element_at<float>(from + place * 4);
  const uint16_t bits = element_at<uint16_t>(from + place * 2);
  return dtype == MOE_BFLOAT16 ? BFloat16::widen(bits) : Float16::widen(bits);
}

void narrowed(float value, char* to, int32_t dtype, int64_t place) {
  if (dtype == MOE_FLOAT32) {
    memcpy(to + place * 4, &value, 4);
    return;
  }
  const uint16_t bits = dtype == MOE_BFLOAT16 ? BFloat16::narrow(value) : Float16::narrow(value);
  memcpy(to + place * 2, &bits, 2);
}

// NaN comes first, as in moe.kernels.topk.
bool greater(float a, float b) { return a > b || (isnan(a) && !isnan(b)); }

void choose(const Choice& choice, int64_t row, float* shares) {
  const char* logits = choice.logits + row * choice.experts * size_of(choice.dtype);
  float greatest = -INFINITY, sum = 0;
  for (int64_t e = 0; e < choice.experts; ++e) {
    shares[e] = widened(logits, choice.dtype, e);
    if (greater(shares[e], greatest)) greatest = shares[e];
  }
  for (int64_t e = 0; e < choice.experts; ++e) sum += shares[e] = expf(shares[e] - greatest);
  for (int64_t e = 0; e < choice.experts; ++e) shares[e] /= sum;
  char* weights = choice.weights + row * choice.k * size_of(choice.weights_dtype);
  int64_t* index = choice.index + row * choice.k;
  float total = 0;
  // The first of equals; those before it are taken. k is small.
  for (int64_t i = 0; i < choice.k; ++i) {
    int64_t best = -1;
    for (int64_t e = 0; e < choice.experts; ++e) {
      bool taken = false;
      for (int64_t j = 0; j < i; ++j) taken |= index[j] == e;
      if (!taken && (best < 0 || greater(shares[e], shares[best]))) best = e;
    }
    index[i] = best;
    total += shares[best];
  }
  for (int64_t i = 0; i < choice.k; ++i) {
    const float share = shares[index[i]];
    narrowed(choice.normalise ? share / total : share, weights, choice.weights_dtype, i);
  }
}

}  // namespace

int32_t moe_gate(const void* linear, const void* rows, int32_t dtype, int64_t n, int64_t row_stride, int64_t experts,
                 int64_t k, int32_t normalise, void* logits, void* weights, int32_t weights_dtype, int64_t* index,
                 int32_t threads, char* error, int64_t error_size) {
  if (k < 1 || k > experts)
    return fail(error, error_size, "k: got %lld, want 1 to %lld", (long long)k, (long long)experts);
  if (!is_float(weights_dtype))
    return fail(error, error_size, "weights: got dtype %d, want float32, bfloat16 or float16", weights_dtype);
  if (moe_linear_run(linear, rows, dtype, n, row_stride, logits, dtype, experts, threads, error, error_size)) return 1;
  const Choice choice{static_cast<const char*>(logits), experts,       k,    dtype, normalise != 0,
                      static_cast<char*>(weights),      weights_dtype, index};
  const int32_t used = n * experts < kWorthSharing ? 1 : threads;
  Scratch& scratch = Scratch::of_this_thread();
  if (!scratch.reserve(used * Scratch::size<float>(experts)))
    return fail(error, error_size, "not enough memory for %lld experts", (long long)experts);
  float* shares = scratch.take<float>(used * Scratch::size<float>(experts) / (int64_t)sizeof(float));
  const int64_t apart = Scratch::size<float>(experts) / (int64_t)sizeof(float);
  parallel(used, used, [&](int64_t share) {
    for (int64_t row = n * share / used; row < n * (share + 1) / used; ++row)
      choose(choice, row, shares + share * apart);
  });
  return 0;
}
