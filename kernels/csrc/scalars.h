// Elements of the wire's types to float and back, round to nearest even. Bit operations only, so that the compiler can
// use them in vector loops and every instruction set gives the same bits.
#pragma once

#include <stdint.h>
#include <string.h>

#include "abi.h"

static inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// An element at any address: rows and weights may lie in the middle of a message.
template <class T>
static inline T element_at(const void* from) {
  T value;
  memcpy(&value, from, sizeof value);
  return value;
}

struct Float32 {
  typedef float Bits;
  static constexpr int32_t kDtype = MOE_FLOAT32;
  static inline float widen(float value) { return value; }
  static inline float narrow(float value) { return value; }
};

struct BFloat16 {
  typedef uint16_t Bits;
  static constexpr int32_t kDtype = MOE_BFLOAT16;
  static inline float widen(uint16_t bits) { return float_of((uint32_t)bits << 16); }
  static inline uint16_t narrow(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40;  // a NaN stays one, also if its payload was in the lower half
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }
};

struct Float16 {
  typedef uint16_t Bits;
  static constexpr int32_t kDtype = MOE_FLOAT16;
  static inline float widen(uint16_t bits) {
    const uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
    const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
    const uint32_t value = (bits & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : finite;
    return float_of(value | (uint32_t)(bits & 0x8000) << 16);
  }
  static inline uint16_t narrow(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) {
      half = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    } else if (magnitude >= 0x477ff000) {  // from 65520 on, the nearest is infinity
      half = 0x7c00;
    } else if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 leaves the subnormal's bits at the bottom, rounded
      half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
    } else {
      half = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    }
    return (uint16_t)(half | (bits >> 16 & 0x8000));
  }
};

// The element at any address, of a float dtype, and back.
static inline float widened_at(const void* from, int32_t dtype) {
  if (dtype == MOE_FLOAT32) return element_at<float>(from);
  const uint16_t bits = element_at<uint16_t>(from);
  return dtype == MOE_BFLOAT16 ? BFloat16::widen(bits) : Float16::widen(bits);
}

static inline void narrow_to(void* to, int32_t dtype, float value) {
  if (dtype == MOE_FLOAT32) {
    memcpy(to, &value, sizeof value);
    return;
  }
  const uint16_t bits = dtype == MOE_BFLOAT16 ? BFloat16::narrow(value) : Float16::narrow(value);
  memcpy(to, &bits, sizeof bits);
}

static inline bool is_bytes(int32_t dtype) { return dtype == MOE_INT8 || dtype == MOE_INT8_DYNAMIC; }

static inline int64_t size_of(int32_t dtype) {
  return dtype == MOE_FLOAT32 ? 4 : is_bytes(dtype) ? 1 : 2;
}

static inline bool is_float(int32_t dtype) {
  return dtype == MOE_FLOAT32 || dtype == MOE_BFLOAT16 || dtype == MOE_FLOAT16;
}
