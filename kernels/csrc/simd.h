// Vectors of the instruction set that this file is compiled for, and the few operations that GCC's and Clang's vector
// extensions leave out. All in the variant's own namespace: the same inline function exists once per instruction set.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace MOE_VARIANT {

// Instructions that multiply two bfloat16 pairs, or four bytes, and add them to a lane at once; byte tables to widen with.
#if defined(__AVX512BF16__) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define MOE_DOTS 1
#else
#define MOE_DOTS 0
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kTileRows = 12;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kTileRows = 6;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kTileRows = 12;
#else
constexpr int kLanes = 4;
constexpr int kTileRows = 6;
#endif
// Accumulators that fit beside the operands: kTileRows rows of two vectors.
constexpr int kAccumulators = kTileRows * 2;
constexpr int kPanel = 2 * kLanes;  // columns of a panel

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));

template <class V>
static inline V load(const void* from) {
  V value;
  memcpy(&value, from, sizeof value);
  return value;
}

static inline void store(float* to, Vec value) { memcpy(to, &value, sizeof value); }

static inline Words broadcast_word(uint32_t x) { return x - Words{}; }

// x - 0 keeps -0, where x + 0 would not.
static inline Vec broadcast(float x) { return x - Vec{}; }

// a * b + c, rounded once where the instruction set can; the only way in which products are added up.
static inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// kLanes signed bytes.
static inline Vec widen_bytes(const int8_t* from) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
  return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
  // The bytes of a word, each moved to the top and shifted down with its sign.
  int32_t word;
  memcpy(&word, from, sizeof word);
  const Words bytes = (Words)(word - Ints{}) << (Words){24, 16, 8, 0};
  return __builtin_convertvector((Ints)bytes >> 24, Vec);
#endif
}

// The two int16 of each lane times the two of `words`, added to the lane.
static inline Ints add_pairs(Ints sums, Words pairs, Words words) {
#if defined(__AVX512F__)
  return sums + (Ints)_mm512_madd_epi16((__m512i)pairs, (__m512i)words);
#elif defined(__AVX2__)
  return sums + (Ints)_mm256_madd_epi16((__m256i)pairs, (__m256i)words);
#else
  const Ints low = ((Ints)(pairs << 16) >> 16) * ((Ints)(words << 16) >> 16);
  return sums + low + ((Ints)pairs >> 16) * ((Ints)words >> 16);
#endif
}

// 2 * kLanes signed bytes as int16, two in a lane.
static inline Words widen_byte_pairs(const int8_t* from) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
#else
  Words pairs;
  for (int lane = 0; lane < kLanes; ++lane)
    pairs[lane] = (uint32_t)(uint16_t)(int16_t)from[2 * lane] | (uint32_t)(uint16_t)(int16_t)from[2 * lane + 1] << 16;
  return pairs;
#endif
}

// kLanes values of binary16.
static inline Vec widen_halves(const uint16_t* from) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__)
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#elif defined(__aarch64__)
  return (Vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
  // Exponent and fraction in float's places, the bias put right by a product that is exact, also for subnormals.
  const Words bits = {from[0], from[1], from[2], from[3]};
  const Words magnitude = (bits & 0x7fff) << 13;
  const Words special = (Words)((magnitude & 0x0f800000) == 0x0f800000);
  const Words finite = (Words)((Vec)magnitude * 0x1p112f);
  return (Vec)((finite & ~special) | ((magnitude | 0x7f800000) & special) | ((bits & 0x8000) << 16));
#endif
}

}  // namespace MOE_VARIANT
