// The C ABI of libmoe_kernels: what Python (ctypes) and the native wire call. No exception leaves it.
//
// Element types are the numbers of moe.tensor.v1.Dtype. Every function that can fail returns 0, or 1 and a message in
// `error` (cut to `error_size`, always ended by a zero). Strides are in elements. Handles are freed once, by their owner,
// when no call uses them; apart from that every function may be called from any thread.
#pragma once

#include <stdint.h>

#define MOE_EXPORT __attribute__((visibility("default")))

// Raised whenever a signature or a layout changes, so that an old library beside new Python is refused.
#define MOE_KERNELS_ABI 1

#define MOE_FLOAT32 1
#define MOE_BFLOAT16 2
#define MOE_FLOAT16 3
// Weights only: signed bytes q with a float scale and offset per output channel, standing for scale * q + offset.
#define MOE_INT8 100

extern "C" {

// A matrix as it lies in memory before it is packed: [out, in] elements of `dtype`.
// scale and offset: float [out], for MOE_INT8 only, else null.
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
}
