// Checks every instruction set of this processor without Python: for cross-compiled builds under an emulator.
//
// Products of all element types, bytes also with scales per group of inputs, and a whole group against float64, and each
// row alone against the row in a batch, to the bit. Prints a line for each instruction set; returns 1 at the first mismatch.

#include <math.h>
#include <stdio.h>

#include <vector>

#include "abi.h"
#include "scalars.h"

namespace {

uint64_t state = 1;

float drawn() {  // xorshift (Marsaglia 2003), -1 to 1
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (float)((int64_t)(state >> 40) - (1 << 23)) / (1 << 23);
}

// Values of an element type: what is stored, and what it stands for.
struct Values {
  std::vector<char> stored;
  std::vector<double> real;
};

Values drawn_values(int32_t dtype, int64_t count) {
  Values values;
  values.stored.resize((size_t)(count * size_of(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const float x = drawn();
    char* at = values.stored.data() + i * size_of(dtype);
    const uint16_t half = dtype == MOE_BFLOAT16 ? BFloat16::narrow(x) : Float16::narrow(x);
    const int8_t byte = (int8_t)(x * 127);
    if (dtype == MOE_FLOAT32) memcpy(at, &x, 4);
    if (dtype == MOE_BFLOAT16 || dtype == MOE_FLOAT16) memcpy(at, &half, 2);
    if (is_bytes(dtype)) memcpy(at, &byte, 1);
    values.real.push_back(dtype == MOE_FLOAT32    ? x
                          : dtype == MOE_BFLOAT16 ? BFloat16::widen(half)
                          : dtype == MOE_FLOAT16  ? Float16::widen(half)
                                                  : byte);
  }
  return values;
}

bool fails(const char* what, int32_t variant, int32_t dtype, int64_t rows) {
  printf("%s: %s of dtype %d with %lld rows is wrong\n", moe_variant_name(variant), what, dtype, (long long)rows);
  return false;
}

// Rows as products of MOE_INT8_DYNAMIC take them: on 255 even steps of each row's own size.
std::vector<double> rounded(const std::vector<double>& rows, int64_t n, int64_t in) {
  std::vector<double> values = rows;
  for (int64_t row = 0; row < n; ++row) {
    double greatest = 0;
    for (int64_t k = 0; k < in; ++k) greatest = fmax(greatest, fabs(rows[(size_t)(row * in + k)]));
    const float steps = 127 / (float)greatest;
    for (int64_t k = 0; k < in; ++k) {
      double& value = values[(size_t)(row * in + k)];
      value = nearbyintf((float)value * steps) * ((float)greatest / 127);
    }
  }
  return values;
}

// group: inputs that share a scale, for bytes; 0 for all of them.
bool check_linear(int32_t variant, int32_t dtype, int64_t group, int32_t rows_dtype, int64_t n, int64_t out, int64_t in) {
  const int64_t size_of_group = group ? group : in, groups = (in + size_of_group - 1) / size_of_group;
  const Values weight = drawn_values(dtype, out * in), rows = drawn_values(rows_dtype, n * in);
  const std::vector<double> met = dtype == MOE_INT8_DYNAMIC ? rounded(rows.real, n, in) : rows.real;
  std::vector<float> scale, offset, bias;
  for (int64_t i = 0; i < out * groups; ++i) {
    scale.push_back(is_bytes(dtype) ? drawn() / 127 : 1);
    offset.push_back(is_bytes(dtype) ? drawn() : 0);
  }
  for (int64_t i = 0; i < out; ++i) bias.push_back(drawn());
  const moe_matrix matrix{weight.stored.data(), scale.data(), offset.data(), out, in, in, 1, group, dtype};
  void* handle = nullptr;
  char error[200] = "";
  if (moe_linear_pack(variant, &matrix, bias.data(), &handle, error, sizeof error)) return fails(error, variant, dtype, n);
  std::vector<float> got((size_t)(n * out)), alone((size_t)out);
  int32_t failed = moe_linear_run(handle, rows.stored.data(), rows_dtype, n, in, got.data(), MOE_FLOAT32, out, 3, error,
                                  sizeof error);
  for (int64_t row = 0; row < n && !failed; ++row) {
    failed = moe_linear_run(handle, rows.stored.data() + row * in * size_of(rows_dtype), rows_dtype, 1, in,
                            alone.data(), MOE_FLOAT32, out, 1, error, sizeof error);
    if (memcmp(alone.data(), got.data() + row * out, (size_t)out * 4)) return fails("a row alone", variant, dtype, n);
    for (int64_t column = 0; column < out; ++column) {
      double want = bias[(size_t)column], size = 1;
      for (int64_t k = 0; k < in; ++k) {
        const double x = rows.real[(size_t)(row * in + k)];
        const size_t place = (size_t)(column * groups + k / size_of_group);
        const double w = weight.real[(size_t)(column * in + k)] * scale[place];
        want += met[(size_t)(row * in + k)] * w + x * offset[place];
        size += fabs(x) * (fabs(w) + 3 * fabs((double)offset[place]));
      }
      if (!(fabs(alone[(size_t)column] - want) <= size * (double)(in + 4) * 0x1p-23))
        return fails("a product", variant, dtype, n);
    }
  }
  moe_linear_free(handle);
  return failed ? fails(error, variant, dtype, n) : true;
}

// Two experts of the same weights, every row through both with half the weight: one expert's output.
bool check_group(int32_t variant, int32_t dtype, int64_t group, int64_t n) {
  constexpr int64_t kHidden = 21, kInner = 37, kMostGroups = 3;
  const Values up = drawn_values(dtype, 2 * kInner * kHidden), down = drawn_values(dtype, kHidden * kInner);
  const Values rows = drawn_values(MOE_FLOAT32, n * kHidden);
  const std::vector<float> ones(2 * kInner * kMostGroups, 1 / 64.0f), zeros(2 * kInner * kMostGroups, 0);
  const moe_matrix ups{up.stored.data(), ones.data(), zeros.data(), 2 * kInner, kHidden, kHidden, 1, group, dtype};
  const moe_matrix downs{down.stored.data(), ones.data(), zeros.data(), kHidden, kInner, kInner, 1, group, dtype};
  const double unit = dtype == MOE_INT8 ? 1 / 64.0 : 1;
  const moe_ffn formula{kHidden, kInner, MOE_FLOAT32, MOE_SILU, 1, 0, 0};
  void* handle = nullptr;
  char error[200] = "";
  int32_t failed = moe_group_new(variant, &formula, &handle, error, sizeof error);
  for (int32_t id = 0; id < 2 && !failed; ++id)
    failed = moe_group_add(handle, id, &ups, &downs, nullptr, nullptr, error, sizeof error);
  std::vector<int32_t> slot_rows, slot_experts;
  const std::vector<float> weights((size_t)(2 * n), 0.5f);
  for (int64_t slot = 0; slot < 2 * n; ++slot) {
    slot_rows.push_back((int32_t)(slot / 2));
    slot_experts.push_back((int32_t)(slot % 2));
  }
  std::vector<float> got((size_t)(n * kHidden));
  failed = failed || moe_group_run(handle, rows.stored.data(), kHidden, n, slot_rows.data(), slot_experts.data(),
                                   weights.data(), MOE_FLOAT32, 2 * n, got.data(), MOE_FLOAT32, 1, error, sizeof error);
  if (failed) return fails(error, variant, dtype, n);
  moe_group_free(handle);
  for (int64_t row = 0; row < n; ++row) {
    double inner[2 * kInner];
    for (int64_t i = 0; i < 2 * kInner; ++i) {
      inner[i] = 0;
      for (int64_t k = 0; k < kHidden; ++k)
        inner[i] += rows.real[(size_t)(row * kHidden + k)] * up.real[(size_t)(i * kHidden + k)] * unit;
    }
    for (int64_t column = 0; column < kHidden; ++column) {
      double want = 0, size = 1e-30;
      for (int64_t i = 0; i < kInner; ++i) {
        const double value = inner[i] / (1 + exp(-inner[i])) * inner[kInner + i];
        want += value * down.real[(size_t)(column * kInner + i)] * unit;
        size += (1 + fabs(inner[i])) * (1 + fabs(inner[kInner + i])) * unit * (dtype == MOE_INT8 ? 127 : 1);
      }
      if (!(fabs(got[(size_t)(row * kHidden + column)] - want) <= size * 0x1p-18))
        return fails("a group", variant, dtype, n);
    }
  }
  return true;
}

}  // namespace

int main() {
  const int32_t dtypes[] = {MOE_FLOAT32, MOE_BFLOAT16, MOE_FLOAT16, MOE_INT8, MOE_INT8_DYNAMIC};
  for (int32_t variant = 0; variant < moe_variants(); ++variant) {
    for (int32_t dtype : dtypes)
      for (int64_t n : {1, 2, 3, 5, 6, 7, 11, 12, 13, 29})
        for (int64_t group : {0, 16, 32}) {
          if (group && !is_bytes(dtype)) continue;
          if (!check_linear(variant, dtype, group, MOE_FLOAT32, n, 101, 33) ||
              !check_linear(variant, dtype, group, MOE_BFLOAT16, n, 101, 33) ||
              (dtype != MOE_INT8_DYNAMIC && !check_group(variant, dtype, group, n)))
            return 1;
        }
    printf("%s: sound\n", moe_variant_name(variant));
  }
  return 0;
}
