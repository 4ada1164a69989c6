#include "pack.h"

#include "errors.h"
#include "scalars.h"
#include "weight_memory.h"

namespace {

constexpr int64_t kSharesPerThread = 4;
constexpr int64_t kSmallestShare = 1 << 17;  // multiply-adds; some ten microseconds, what waking a thread costs
constexpr int64_t kWorthWaking = 150'000;        // nanoseconds of one thread
constexpr int64_t kBytesPerNanosecond = 30;      // that a thread reads (Zen 4), and
constexpr int64_t kWorkPerNanosecond = 100;      // multiply-adds that it does; both at most
constexpr int64_t kMostElements = (int64_t)1 << 40;
constexpr int64_t kMostDynamic = 65536;  // 255 * 127 times that is below 2^31

}  // namespace

int32_t pack_matrix(const Variant& variant, const moe_matrix& source, Matrix& matrix, char* error,
                    int64_t error_size) {
  if (!is_float(source.dtype) && !is_bytes(source.dtype))
    return fail(error, error_size, "weight: dtype %d can't be packed", source.dtype);
  if (source.out < 1 || source.in < 1 || source.out > kMostElements / source.in)
    return fail(error, error_size, "weight: got [%lld, %lld], want at least [1, 1]", (long long)source.out,
                (long long)source.in);
  if (is_bytes(source.dtype) && (!source.scale || !source.offset))
    return fail(error, error_size, "weight: int8 needs a scale and an offset per output channel or group");
  if (is_bytes(source.dtype) && (source.group < 0 || source.group % MOE_GROUP_UNIT))
    return fail(error, error_size, "weight: groups of %lld inputs, want a multiple of %d", (long long)source.group,
                MOE_GROUP_UNIT);
  if (source.dtype == MOE_INT8_DYNAMIC && source.in > kMostDynamic)
    return fail(error, error_size, "weight: got %lld inputs, rows of bytes are added up in 32 bits: at most %lld",
                (long long)source.in, (long long)kMostDynamic);
  matrix.dtype = source.dtype;
  matrix.out = source.out;
  matrix.in = source.in;
  matrix.group = is_bytes(source.dtype) && source.group && source.group < source.in ? source.group : source.in;
  matrix.panels = (source.out + variant.panel - 1) / variant.panel;
  const int64_t depth = variant.depth(source.dtype);
  matrix.panel_bytes = (source.in + depth - 1) / depth * depth * variant.panel * size_of(source.dtype);
  if (matrix.grouped()) matrix.panel_bytes += matrix.inputs().groups() * variant.panel * 2 * (int64_t)sizeof(float);
  matrix.data = weight_memory(matrix.bytes());
  const bool apart = matrix.of_bytes() && !matrix.grouped();  // a group's scales lie before its bytes
  if (apart) {
    matrix.scale = allocate<float>(matrix.panels * variant.panel);
    matrix.offset = allocate<float>(matrix.panels * variant.panel);
  }
  if (!matrix.data || (apart && (!matrix.scale || !matrix.offset)))
    return fail(error, error_size, "not enough memory to pack %lld bytes", (long long)matrix.bytes());
  variant.pack(source, matrix);
  return 0;
}

int32_t threads_worth(const Matrix& shape, int64_t panel, int64_t panels, int64_t n, int32_t threads) {
  const int64_t reading = panels * shape.panel_bytes / kBytesPerNanosecond;
  const int64_t multiplying = panels * n * shape.in * panel / kWorkPerNanosecond;
  return reading + multiplying < kWorthWaking ? 1 : threads;
}

Shares::Shares(int64_t all, int64_t panel_work, int32_t threads) : count(1), panels(all) {
  if (threads <= 1) return;
  const int64_t worth = all * panel_work / kSmallestShare;
  count = threads * kSharesPerThread;
  if (count > worth) count = worth;
  if (count > all) count = all;
  if (count < 1) count = 1;
}
