// Eight floats in the compiler's own vectors: any processor. The compiler splits them into the registers there are.
#pragma once
#include <cstring>

#include "common.h"

namespace tandem {
namespace TANDEM_VARIANT {

constexpr int W = 8;
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
struct V { Floats v; };

static inline V zero() { return {Floats{}}; }
static inline V splat(float x) { return {Floats{x, x, x, x, x, x, x, x}}; }
static inline V load(const float* p) {
  V r;
  std::memcpy(&r.v, p, sizeof r.v);
  return r;
}
static inline V load(const bf16* p) {
  V r;
  for (int i = 0; i < W; ++i) r.v[i] = to_float(p[i]);
  return r;
}
static inline void store(float* p, V x) { std::memcpy(p, &x.v, sizeof x.v); }
static inline void store(bf16* p, V x) {
  for (int i = 0; i < W; ++i) p[i] = to_bf16(x.v[i]);
}
static inline void store_two(bf16* p, V x, V y) {
  store(p, x);
  store(p + W, y);
}
static inline V operator+(V a, V b) { return {a.v + b.v}; }
static inline V operator-(V a, V b) { return {a.v - b.v}; }
static inline V operator*(V a, V b) { return {a.v * b.v}; }
static inline V operator/(V a, V b) { return {a.v / b.v}; }
static inline V fma(V a, V b, V c) { return {a.v * b.v + c.v}; }
static inline V max(V a, V b) { return {a.v > b.v ? a.v : b.v}; }
static inline V min(V a, V b) { return {a.v < b.v ? a.v : b.v}; }
static inline V round(V a) {  // adding 1.5 * 2^23 pushes the fraction out; exact below 2^22, which is all that exp2 asks
  const Floats big = splat(12582912.0f).v;
  return {(a.v + big) - big};
}
static inline V scale2(V x, V whole) {  // x * 2^whole, for -127 <= whole <= 127
  const Ints e = (__builtin_convertvector(whole.v, Ints) + 127) << 23;
  Floats f;
  std::memcpy(&f, &e, sizeof f);
  return {x.v * f};
}
static inline void split(V x, V& whole, V& fraction) {  // x in its floor, and the rest
  const Floats nearest = round(x).v;
  whole = {nearest > x.v ? nearest - 1.0f : nearest};
  fraction = x - whole;
}
static inline V add_if_at_least(V sum, V x, V threshold, V term) {  // by lanes: sum + term where x >= threshold
  return {sum.v + (x.v >= threshold.v ? term.v : Floats{})};
}
static inline unsigned at_least(V x, V threshold) {  // a bit a lane
  unsigned bits = 0;
  for (int i = 0; i < W; ++i) bits |= static_cast<unsigned>(x.v[i] >= threshold.v[i]) << i;
  return bits;
}
constexpr float kExp2Floor = -127.0f;  // scale2(1, this) is exactly 0
static inline float sum(V a) { return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7])); }
static inline float highest(V a) {
  float m = a.v[0];
  for (int i = 1; i < W; ++i) m = most(m, a.v[i]);
  return m;
}
static inline V keep(V x, int low, int high, float other) {
  const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return {((lane >= low) & (lane < high)) ? x.v : splat(other).v};
}
static inline V first_of_pairs(const void* p) {
  Ints u;
  std::memcpy(&u, p, sizeof u);
  u = u << 16;
  V r;
  std::memcpy(&r.v, &u, sizeof u);
  return r;
}
static inline V second_of_pairs(const void* p) {
  Ints u;
  std::memcpy(&u, p, sizeof u);
  u = u & static_cast<int32_t>(0xffff0000);
  V r;
  std::memcpy(&r.v, &u, sizeof u);
  return r;
}
static inline V load(const int8_t* p) {
  V r;
  for (int i = 0; i < W; ++i) r.v[i] = p[i];
  return r;
}
static inline void store(int8_t* p, V x) {  // whole numbers from -128 to 127
  for (int i = 0; i < W; ++i) p[i] = static_cast<int8_t>(x.v[i]);
}
static inline void store(int16_t* p, V x) {
  for (int i = 0; i < W; ++i) p[i] = static_cast<int16_t>(x.v[i]);
}
static inline V load_half(const uint16_t* p) {
  V r;
  for (int i = 0; i < W; ++i) r.v[i] = half_to_float(p[i]);
  return r;
}
static inline V load(const fp8* p) {  // below the smallest exponent the step is fixed
  V r;
  for (int i = 0; i < W; ++i) {
    const uint32_t size = p[i].bits & 127, bits = (size << 20) + (120u << 23);
    float value = static_cast<float>(size) * 0x1p-9f;
    if (size >= 8) std::memcpy(&value, &bits, 4);
    r.v[i] = p[i].bits & 128 ? -value : value;
  }
  return r;
}
static inline V abs(V a) { return {a.v < 0 ? -a.v : a.v}; }

// Eight lanes of 32 bits, for sums of products of bytes.
struct I { Ints v; };
static inline I splat_int(int32_t x) { return {Ints{x, x, x, x, x, x, x, x}}; }
static inline I load_ints(const void* p) {
  I r;
  std::memcpy(&r.v, p, sizeof r.v);
  return r;
}
static inline I add(I a, I b) { return {a.v + b.v}; }
static inline V to_floats(I x) { return {__builtin_convertvector(x.v, Floats)}; }
static inline I low_nibbles(I x) { return {x.v & 0x0f0f0f0f}; }
static inline I high_nibbles(I x) { return {(x.v >> 4) & 0x0f0f0f0f}; }
static inline I load_pairs(const int8_t* p) {  // of bytes, widened
  int16_t words[2 * W];
  for (int i = 0; i < 2 * W; ++i) words[i] = p[i];
  return load_ints(words);
}
// Two 16-bit numbers of each lane, multiplied and added up.
static inline I dot_pairs(I sum, I w, I a) {
  return {sum.v + ((w.v << 16) >> 16) * ((a.v << 16) >> 16) + (w.v >> 16) * (a.v >> 16)};
}
// Four unsigned bytes of each lane of `w` times four signed ones of `a`, added up.
static inline I dot(I sum, I w, I a) {
  for (int i = 0; i < 32; i += 8) sum.v += ((w.v >> i) & 255) * ((a.v << (24 - i)) >> 24);
  return sum;
}
static inline void prefetch(const void* p) { __builtin_prefetch(p); }
static inline void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace TANDEM_VARIANT
}  // namespace tandem
