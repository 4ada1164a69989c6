// How the elements of a panel lie, and how one step of it meets the words of rows: the innermost lines of all products.
//
// A panel type P has kStep (bytes of a step), kDepth (inputs of a step), kWords (words of a row for a step), Weights (what
// a step is loaded to, for two vectors of columns), kScaled (whether weights are bytes, whose sums get a scale), Wide (the
// panel type that loads the same words faster from a copy, kept by its keep(); P itself where there is none) and add():
// the words of one row times these weights onto two vectors of sums. Sums are float32, or int32 in their place. (kKeeps and
// kWhole are for product.h to set.)
#pragma once

#include "matrix.h"
#include "simd.h"

namespace MOE_VARIANT {

// Two vectors of columns.
struct Two {
  Words low, high;
};

template <int Depth>
struct Steps {
  static constexpr int kDepth = Depth;
  static constexpr bool kScaled = false, kKeeps = false, kWhole = false;
  typedef Two Weights;
};

// Weights of one input as float32, rows likewise.
struct FloatRows : Steps<1> {
  static constexpr int kWords = 1;
  static inline void add(const uint32_t* row, int, const Two& weights, Vec& low, Vec& high) {
    const Vec x = broadcast(element_at<float>(row));
    low = fma(x, (Vec)weights.low, low);
    high = fma(x, (Vec)weights.high, high);
  }
};

struct PanelFloat32 : FloatRows {
  typedef PanelFloat32 Wide;
  static constexpr int kStep = kPanel * 4;
  static inline Two load(const char* from) {
    return {MOE_VARIANT::load<Words>(from), MOE_VARIANT::load<Words>(from + kLanes * 4)};
  }
};

struct PanelFloat16 : FloatRows {
  typedef PanelFloat16 Wide;
  static constexpr int kStep = kPanel * 2;
  static inline Two load(const char* from) {
    return {(Words)widen_halves((const uint16_t*)from), (Words)widen_halves((const uint16_t*)from + kLanes)};
  }
};

#if MOE_DOTS

// Bytes as packed by BytePairPlaces are sign and magnitude m of +-(m + 1/2), which bfloat16's eight bits hold exactly: two
// tables of 128 bytes give the value's lower and upper half.
struct alignas(64) Halves {
  uint8_t lower[128], upper[128];
  constexpr Halves() : lower(), upper() {
    for (int m = 0; m < 128; ++m) {
      const int twice = 2 * m + 1;  // 2^(exponent + 1) <= twice < 2^(exponent + 2)
      int exponent = -1;
      while (twice >> (exponent + 2)) ++exponent;
      const int fraction = ((twice << 7) >> (exponent + 1)) & 0x7f;
      const int bits = (exponent + 127) << 7 | fraction;
      lower[m] = (uint8_t)(bits & 0xff);
      upper[m] = (uint8_t)(bits >> 8);
    }
  }
};
static constexpr Halves kHalves{};

// Inputs 2 s and 2 s + 1 of a column in one word.
struct PairWeights : Steps<2> {
  static inline Two load_pairs(const char* from) {
    return {MOE_VARIANT::load<Words>(from), MOE_VARIANT::load<Words>(from + kLanes * 4)};
  }

  static inline Two load_bytes(const char* from) {
    const __m512i bytes = _mm512_loadu_si512(from);
    const __m512i lower = _mm512_permutex2var_epi8(_mm512_load_si512(kHalves.lower), bytes,
                                                   _mm512_load_si512(kHalves.lower + 64));
    const __m512i upper = _mm512_permutex2var_epi8(_mm512_load_si512(kHalves.upper), bytes,
                                                   _mm512_load_si512(kHalves.upper + 64));
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    const __m512i signed_upper = _mm512_ternarylogic_epi32(upper, bytes, sign, 0xf8);  // upper | (bytes & sign)
    return {(Words)_mm512_unpacklo_epi8(lower, signed_upper), (Words)_mm512_unpackhi_epi8(lower, signed_upper)};
  }
};

// Two products at once; bfloat16 subnormals count as zero (the instruction's, VDPBF16PS).
struct PairRows : PairWeights {
  static constexpr int kWords = 1;
  static inline void add(const uint32_t* row, int, const Two& weights, Vec& low, Vec& high) {
    const __m512bh x = (__m512bh)_mm512_set1_epi32((int)*row);
    low = (Vec)_mm512_dpbf16_ps((__m512)low, x, (__m512bh)weights.low);
    high = (Vec)_mm512_dpbf16_ps((__m512)high, x, (__m512bh)weights.high);
  }
};

// Rows of another type: one input after the other.
struct SplitRows : PairWeights {
  static constexpr int kWords = 2;
  static inline void add(const uint32_t* row, int height, const Two& weights, Vec& low, Vec& high) {
    const Vec first = broadcast(element_at<float>(row)), second = broadcast(element_at<float>(row + height));
    low = fma(first, (Vec)(weights.low << 16), low);
    high = fma(first, (Vec)(weights.high << 16), high);
    low = fma(second, (Vec)(weights.low & 0xffff0000u), low);
    high = fma(second, (Vec)(weights.high & 0xffff0000u), high);
  }
};

template <class Rows>
struct BFloat16Pairs : Rows {
  typedef BFloat16Pairs Wide;
  static constexpr int kStep = kPanel * 4;
  static inline Two load(const char* from) { return Rows::load_pairs(from); }
  static inline void keep(char* to, const Two& weights) {
    store((float*)to, (Vec)weights.low);
    store((float*)to + kLanes, (Vec)weights.high);
  }
};

template <class Rows>
struct Int8Pairs : Rows {
  typedef BFloat16Pairs<Rows> Wide;
  static constexpr int kStep = kPanel * 2;
  static constexpr bool kScaled = true;
  static inline Two load(const char* from) { return Rows::load_bytes(from); }
};

// Four products at once of unsigned weights (q + 128) and signed rows; exact.
struct PanelDynamic : Steps<4> {
  typedef PanelDynamic Wide;
  static constexpr int kWords = 1, kStep = kPanel * 4;
  static constexpr bool kScaled = true;
  static constexpr int32_t kShift = 128;
  static inline Two load(const char* from) {
    return {MOE_VARIANT::load<Words>(from), MOE_VARIANT::load<Words>(from + kLanes * 4)};
  }
  static inline void add(const uint32_t* row, int, const Two& weights, Vec& low, Vec& high) {
    const __m512i x = _mm512_set1_epi32((int)*row);
    low = (Vec)_mm512_dpbusd_epi32((__m512i)low, (__m512i)weights.low, x);
    high = (Vec)_mm512_dpbusd_epi32((__m512i)high, (__m512i)weights.high, x);
  }
};

#else

// Column j in the lower and column j + kLanes in the upper half of word j: each is one operation away from float.
struct PanelBFloat16 : FloatRows {
  typedef PanelBFloat16 Wide;
  static constexpr int kStep = kPanel * 2;
  static inline Two load(const char* from) {
    const Words words = MOE_VARIANT::load<Words>(from);
    return {words << 16, words & 0xffff0000u};
  }
};

struct PanelInt8 : FloatRows {
  typedef PanelInt8 Wide;
  static constexpr int kStep = kPanel;
  static constexpr bool kScaled = true;
  static inline Two load(const char* from) {
    return {(Words)widen_bytes((const int8_t*)from), (Words)widen_bytes((const int8_t*)from + kLanes)};
  }
};

// Two products at once, in 16 bits each; exact.
struct PanelDynamic : Steps<2> {
  typedef PanelDynamic Wide;
  static constexpr int kWords = 1, kStep = kPanel * 2;
  static constexpr bool kScaled = true;
  static constexpr int32_t kShift = 0;
  static inline Two load(const char* from) {
    return {widen_byte_pairs((const int8_t*)from), widen_byte_pairs((const int8_t*)from + 2 * kLanes)};
  }
  static inline void add(const uint32_t* row, int, const Two& weights, Vec& low, Vec& high) {
    const Words x = broadcast_word(*row);
    low = (Vec)add_pairs((Ints)low, weights.low, x);
    high = (Vec)add_pairs((Ints)high, weights.high, x);
  }
};

#endif

// Where element (column j, input d) of a step lies, and what it is stored as.
struct PlainPlaces {
  static constexpr int kDepth = 1;
  static inline int64_t place(int64_t j, int64_t) { return j; }
  template <class Bits>
  static inline Bits stored(Bits bits) {
    return bits;
  }
};

struct PairedColumns : PlainPlaces {
  static inline int64_t place(int64_t j, int64_t) { return j % kLanes * 2 + j / kLanes; }
};

template <int Depth>
struct WordPlaces : PlainPlaces {
  static constexpr int kDepth = Depth;
  static inline int64_t place(int64_t j, int64_t d) { return j / kLanes * Depth * kLanes + j % kLanes * Depth + d; }
};

// Unpacking interleaves within 16 bytes: the lower eight are of the first vector.
struct BytePairPlaces : PlainPlaces {
  static constexpr int kDepth = 2;
  static inline int64_t place(int64_t j, int64_t d) {
    const int64_t c = j % kLanes;
    return c / 4 * 16 + j / kLanes * 8 + c % 4 * 2 + d;
  }
  static inline int8_t stored(int8_t q) { return (int8_t)(q < 0 ? q ^ 0x7f : q); }
};

struct UnsignedPlaces : WordPlaces<4> {
  static inline int8_t stored(int8_t q) { return (int8_t)(q ^ 0x80); }
};

#if MOE_DOTS
typedef WordPlaces<2> BFloat16Places;
typedef BytePairPlaces Int8Places;
typedef UnsignedPlaces DynamicPlaces;
constexpr float kInt8Shift = 0.5f;
#else
typedef PairedColumns BFloat16Places;
typedef PlainPlaces Int8Places;
typedef WordPlaces<2> DynamicPlaces;
constexpr float kInt8Shift = 0;
#endif

}  // namespace MOE_VARIANT
