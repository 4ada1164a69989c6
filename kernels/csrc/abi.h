// The C ABI of libmoe_kernels: what Python (ctypes) and the native wire call. No exception leaves it.
//
// Element types are the numbers of moe.tensor.v1.Dtype. Every function that can fail returns 0, or 1 and a message in
// `error` (cut to `error_size`, always ended by a zero). Strides are in elements. Rows and weights of slots may lie at any address,
// all else is aligned to its elements. Handles are freed once, by their owner, when no call uses them; apart from that
// every function may be called from any thread.
#pragma once

#include <stdint.h>

#define MOE_EXPORT __attribute__((visibility("default")))

// Raised whenever a signature or a layout changes, so that an old library beside new Python is refused.
#define MOE_KERNELS_ABI 4

#define MOE_FLOAT32 1
#define MOE_BFLOAT16 2
#define MOE_FLOAT16 3
// Weights only: signed bytes q with a float scale and offset per output channel, standing for scale * q + offset.
#define MOE_INT8 100
// The same, and rows are rounded to bytes as well, with a scale of each row's own: approximate, and cheaper.
#define MOE_INT8_DYNAMIC 101

extern "C" {

// A matrix as it lies in memory before it is packed: [out, in] elements of `dtype`.
// scale and offset: float [out], for bytes only, else null.
typedef struct {
  const void* data;
  const float* scale;
  const float* offset;
  int64_t out;
  int64_t in;
  int64_t out_stride;
  int64_t in_stride;
  int32_t dtype;
} moe_matrix;

MOE_EXPORT int32_t moe_kernels_abi(void);

// How many instruction sets this library was built for and this processor can run, worst first; and their names.
MOE_EXPORT int32_t moe_variants(void);
MOE_EXPORT const char* moe_variant_name(int32_t variant);

// Packs a matrix for one variant. bias: float [out] or null. The source is not needed afterwards.
MOE_EXPORT int32_t moe_linear_pack(int32_t variant, const moe_matrix* weight, const float* bias, void** handle,
                                   char* error, int64_t error_size);
MOE_EXPORT void moe_linear_free(void* handle);
// Bytes that a handle keeps resident.
MOE_EXPORT int64_t moe_linear_bytes(const void* handle);

// out [n, out] = rows [n, in] * weight^T + bias, accumulated in float32 along `in` in one order, rounded once.
MOE_EXPORT int32_t moe_linear_run(const void* handle, const void* rows, int32_t rows_dtype, int64_t n,
                                  int64_t row_stride, void* out, int32_t out_dtype, int64_t out_stride,
                                  int32_t threads, char* error, int64_t error_size);

// Reads memory and returns a sum over it: the machine's read bandwidth, for benchmarks. bytes: a multiple of 64.
MOE_EXPORT uint64_t moe_read_memory(const void* memory, int64_t bytes, int32_t threads);

#define MOE_SILU 0
#define MOE_GELU 1
#define MOE_GELU_TANH 2
#define MOE_RELU2 3
#define MOE_CLAMPED_SWIGLU 4

// The formula of an expert (moe.kernels.ffn.spec) and its sizes. dtype: what rows come in and each step rounds to.
typedef struct {
  int64_t hidden;
  int64_t inner;
  int32_t dtype;
  int32_t activation;
  int32_t gated;
  float limit;
  float alpha;
} moe_ffn;

// A group's experts of one layer; each is added once, under an id of its own, before the first run.
// up [2 * inner, hidden], gate rows first, or [inner, hidden]; down [hidden, inner]; biases float or null.
MOE_EXPORT int32_t moe_group_new(int32_t variant, const moe_ffn* formula, void** handle, char* error,
                                 int64_t error_size);
MOE_EXPORT int32_t moe_group_add(void* handle, int32_t expert, const moe_matrix* up, const moe_matrix* down,
                                 const float* up_bias, const float* down_bias, char* error, int64_t error_size);
MOE_EXPORT void moe_group_free(void* handle);
MOE_EXPORT int64_t moe_group_bytes(const void* handle);

// partial [n_rows, hidden]: for each row the sum over its slots of weight * expert(row); zero for a row without slots.
// rows [n_rows, hidden] of the formula's dtype, row_stride elements apart. slot_rows [n_slots] does not decrease;
// slot_experts [n_slots] are ids that were added; slot_weights [n_slots] of weights_dtype.
MOE_EXPORT int32_t moe_group_run(const void* handle, const void* rows, int64_t row_stride, int64_t n_rows,
                                 const int32_t* slot_rows, const int32_t* slot_experts, const void* slot_weights,
                                 int32_t weights_dtype, int64_t n_slots, void* partial, int32_t partial_dtype,
                                 int32_t threads, char* error, int64_t error_size);

// As moe_group_run with rows side by side, on the calling thread alone.
MOE_EXPORT int32_t moe_group_ffn(const void* handle, const void* rows, int64_t n_rows, const int32_t* slot_rows,
                                 const int32_t* slot_experts, const void* slot_weights, int32_t weights_dtype,
                                 int64_t n_slots, void* partial, int32_t partial_dtype, char* error,
                                 int64_t error_size);
}
