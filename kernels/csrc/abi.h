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
#define MOE_KERNELS_ABI 8

#define MOE_FLOAT32 1
#define MOE_BFLOAT16 2
#define MOE_FLOAT16 3
// Weights only: signed bytes q with a float scale and offset per output channel, or per group of its inputs, standing for
// scale * q + offset.
#define MOE_INT8 100
// The same, and rows are rounded to bytes as well, with a scale of each row's own: approximate, and cheaper.
#define MOE_INT8_DYNAMIC 101

extern "C" {

// Groups of inputs have a multiple of this many; only the last one of a channel may have fewer.
#define MOE_GROUP_UNIT 16

// A matrix as it lies in memory before it is packed: [out, in] elements of `dtype`.
// For bytes only, else null and 0: scale and offset, float [out][groups], and group, how many inputs of a channel share
// them; 0 for all of them, one group.
typedef struct {
  const void* data;
  const float* scale;
  const float* offset;
  int64_t out;
  int64_t in;
  int64_t out_stride;
  int64_t in_stride;
  int64_t group;
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

// A gate: logits [n, experts] = rows times the packed weight `linear`, whose outputs are the experts, rounded to the rows'
// dtype; the k largest shares of each row's softmax (in float32), largest first, of equals the lowest id, NaN above all,
// in index [n, k] and weights [n, k]; normalise: divided by their sum. All side by side.
MOE_EXPORT int32_t moe_gate(const void* linear, const void* rows, int32_t dtype, int64_t n, int64_t row_stride,
                            int64_t k, int32_t normalise, void* logits, void* weights, int32_t weights_dtype,
                            int64_t* index, int32_t threads, char* error, int64_t error_size);

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

// Keys and values of all slots in one layer's cache: [slots][heads][tokens][size] elements, any strides but the last.
// groups: query heads that share a key head. sinks: float [heads * groups], a score each without a value, or null.
typedef struct {
  const void* keys;
  const void* values;
  const float* sinks;
  int64_t heads;
  int64_t groups;
  int64_t key_size;
  int64_t value_size;
  int64_t key_slot_stride;
  int64_t key_head_stride;
  int64_t key_token_stride;
  int64_t value_slot_stride;
  int64_t value_head_stride;
  int64_t value_token_stride;
  float scale;
  int32_t dtype;
} moe_cache;

// out [n, heads * groups, value_size] = softmax(scale * query . keys) * values, row by row: row i's keys are tokens
// firsts[i] to ends[i] - 1 of slots[i]. query [n, heads * groups, key_size] and out are of the cache's dtype.
MOE_EXPORT int32_t moe_attend(int32_t variant, const moe_cache* cache, const void* query, int64_t query_row_stride,
                              int64_t query_head_stride, int64_t n, const int32_t* slots, const int32_t* firsts,
                              const int32_t* ends, void* out, int64_t out_row_stride, int32_t threads, char* error,
                              int64_t error_size);

// Stores n rows' keys and values [rows][heads][size], strides in elements, as the last token of each row's range:
// token ends[i] - 1 of slots[i].
MOE_EXPORT int32_t moe_store(const moe_cache* cache, const void* keys, int64_t key_row_stride, int64_t key_head_stride,
                             const void* values, int64_t value_row_stride, int64_t value_head_stride, int64_t n,
                             const int32_t* slots, const int32_t* ends, char* error, int64_t error_size);

// An attention's way from hidden states into the cache. qkv: a packed layer whose output is query_heads, then key_heads,
// then as many value heads, each of head_size. query_norm, key_norm: float weights of a root-mean-square norm, for one
// head, or for all heads of a row together if whole_norm; null for none.
typedef struct {
  const void* qkv;
  const float* query_norm;
  const float* key_norm;
  int64_t query_heads;
  int64_t key_heads;
  int64_t head_size;
  float epsilon;
  int32_t whole_norm;
  int32_t round_first;
} moe_projection;

// Angles of each row's position, of the rows' dtype: [n][row_stride]. Elements 0 to 2 * half - 1 of a head are turned;
// the second half's angles are `second` elements after the first's.
typedef struct {
  const void* cos;
  const void* sin;
  int64_t row_stride;
  int64_t half;
  int64_t second;
} moe_rotary;

// out [n, (query_heads + 2 * key_heads) * head_size]: the rows' product with qkv, queries and keys normed and turned; keys
// and values are stored as by moe_store. Rows, out and cache are of the cache's dtype.
MOE_EXPORT int32_t moe_project(int32_t variant, const moe_projection* projection, const moe_cache* cache,
                               const moe_rotary* rotary, const void* rows, int64_t row_stride, int64_t n,
                               const int32_t* slots, const int32_t* ends, void* out, int32_t threads, char* error,
                               int64_t error_size);

// A root-mean-square norm of rows; see moe_rms_norm. weight: float [width].
typedef struct {
  const float* weight;
  float epsilon;
  int32_t round_first;
} moe_norm;

// The attention half of a decoder layer: norm, projection, attention, output, residual, norm. output: a packed layer.
typedef struct {
  moe_projection projection;
  moe_norm before;
  moe_norm after;
  const void* output;
  int64_t hidden;
} moe_layer;

// residual [n, hidden] = rows + output(attention(before(rows))); normed [n, hidden] = after(residual), both side by side.
// Row i's keys are tokens firsts[i] to ends[i] - 1 of slots[i], its own the last. projected [n, the projection's width] and
// mixed [n, query_heads * value_size] are room for what is between. All are of the cache's dtype.
MOE_EXPORT int32_t moe_layer_attend(int32_t variant, const moe_layer* layer, const moe_cache* cache,
                                    const moe_rotary* rotary, const void* rows, int64_t row_stride, int64_t n,
                                    const int32_t* slots, const int32_t* firsts, const int32_t* ends, void* projected,
                                    void* mixed, void* residual, void* normed, int32_t threads, char* error,
                                    int64_t error_size);

// out [n, width], side by side = row / sqrt(mean(row^2) + epsilon) * weight. round_first: the quotient is rounded to the
// rows' dtype before it is multiplied.
MOE_EXPORT int32_t moe_rms_norm(int32_t variant, const void* rows, int32_t dtype, int64_t n, int64_t row_stride,
                                int64_t width, const float* weight, float epsilon, int32_t round_first, void* out,
                                int32_t threads, char* error, int64_t error_size);

// out [n, width] = a + b, rounded once; all side by side, of one dtype.
MOE_EXPORT int32_t moe_add(int32_t variant, const void* a, const void* b, int32_t dtype, int64_t n, int64_t width,
                           void* out, int32_t threads, char* error, int64_t error_size);
}
