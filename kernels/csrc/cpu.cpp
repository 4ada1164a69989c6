// Which of the compiled instruction sets this processor (and its operating system) can run.

#include "matrix.h"

// The variants' own files; MOE_WITH_… says which were compiled.
namespace baseline {
extern const Variant variant;
}
#ifdef MOE_WITH_X86_64
namespace x86_64_v3 {
extern const Variant variant;
}
namespace x86_64_v4 {
extern const Variant variant;
}
namespace x86_64_v4_dots {
extern const Variant variant;
}
#endif
#ifdef MOE_WITH_NEON
namespace neon {
extern const Variant variant;
}
#endif

namespace {

struct Found {
  const Variant* variants[4];
  int32_t count = 0;

  Found() {
#ifdef MOE_WITH_NEON
    variants[count++] = &neon::variant;  // part of every aarch64
#else
    variants[count++] = &baseline::variant;
#endif
#ifdef MOE_WITH_X86_64
    __builtin_cpu_init();
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    if (v3) variants[count++] = &x86_64_v3::variant;
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (v4) variants[count++] = &x86_64_v4::variant;
    // All three from Zen 4 and Sapphire Rapids on.
    if (v4 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512vbmi"))
      variants[count++] = &x86_64_v4_dots::variant;
#endif
  }
};

const Found& found() {
  static const Found once;
  return once;
}

}  // namespace

int32_t variant_count() { return found().count; }
const Variant& variant_at(int32_t place) { return *found().variants[place]; }

int32_t moe_kernels_abi(void) { return MOE_KERNELS_ABI; }
int32_t moe_variants(void) { return variant_count(); }
const char* moe_variant_name(int32_t variant) {
  return variant >= 0 && variant < variant_count() ? variant_at(variant).name : nullptr;
}
