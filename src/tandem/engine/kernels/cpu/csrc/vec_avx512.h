// Sixteen floats in an AVX-512 register. The three vec_*.h offer the same functions; the kernels are written in them.
#pragma once
#include <immintrin.h>

#include "common.h"

namespace tandem {
namespace TANDEM_VARIANT {

constexpr int W = 16;
struct V { __m512 v; };

static inline V zero() { return {_mm512_setzero_ps()}; }
static inline V splat(float x) { return {_mm512_set1_ps(x)}; }
static inline V load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline V load(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
static inline void store(float* p, V x) { _mm512_storeu_ps(p, x.v); }
static inline void store(bf16* p, V x) {
#ifdef __AVX512BF16__
  _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x.v));
#else
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(r));
#endif
}
static inline void store_two(bf16* p, V x, V y) {
#ifdef __AVX512BF16__
  _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(y.v, x.v));
#else
  store(p, x);
  store(p + W, y);
#endif
}
static inline V operator+(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline V operator-(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline V operator*(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline V operator/(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline V round(V a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static inline V scale2(V x, V whole) { return {_mm512_scalef_ps(x.v, whole.v)}; }  // x * 2^whole
// x in a whole number, of which scale2 may take the floor itself, and what it is below x.
static inline void split(V x, V& whole, V& fraction) {
  whole = x;
  fraction = {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
static inline V add_if_at_least(V sum, V x, V threshold, V term) {  // by lanes: sum + term where x >= threshold
  return {_mm512_mask_add_ps(sum.v, _mm512_cmp_ps_mask(x.v, threshold.v, _CMP_GE_OQ), sum.v, term.v)};
}
static inline unsigned at_least(V x, V threshold) { return _mm512_cmp_ps_mask(x.v, threshold.v, _CMP_GE_OQ); }  // a bit a lane
constexpr float kExp2Floor = -160.0f;  // scale2(1, this) is exactly 0
static inline float sum(V a) { return _mm512_reduce_add_ps(a.v); }
static inline float highest(V a) { return _mm512_reduce_max_ps(a.v); }
static inline V keep(V x, int low, int high, float other) {  // lanes low <= i < high, `other` elsewhere
  low = low < 0 ? 0 : low > W ? W : low;
  high = high < 0 ? 0 : high > W ? W : high;
  const __mmask16 in = static_cast<__mmask16>((high > low) ? ((1u << high) - 1) & ~((1u << low) - 1) : 0);
  return {_mm512_mask_mov_ps(_mm512_set1_ps(other), in, x.v)};
}
// Of W columns whose bf16 values lie in pairs: the first of each pair, the second of each.
static inline V first_of_pairs(const void* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
static inline V second_of_pairs(const void* p) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000)))};
}
static inline V load(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
static inline void store(int8_t* p, V x) {  // whole numbers from -128 to 127
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}
static inline void store(int16_t* p, V x) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x.v))); }
static inline V load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
static inline V load(const fp8* p) {  // by its bits: below the smallest exponent the step is fixed
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  const __m512i size = _mm512_and_si512(x, _mm512_set1_epi32(127)), sign = _mm512_slli_epi32(_mm512_srli_epi32(x, 7), 31);
  const __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(size), _mm512_set1_ps(0x1p-9f));
  const __m512 large = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(size, 20), _mm512_set1_epi32(120 << 23)));
  const __m512 value = _mm512_mask_mov_ps(large, _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(8)), small);
  return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(value), sign))};
}
static inline V abs(V a) { return {_mm512_abs_ps(a.v)}; }

// Sixteen lanes of 32 bits, for sums of products of bytes.
struct I { __m512i v; };
static inline I splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline I load_ints(const void* p) { return {_mm512_loadu_si512(p)}; }
static inline I add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline V to_floats(I x) { return {_mm512_cvtepi32_ps(x.v)}; }
static inline I low_nibbles(I x) { return {_mm512_and_si512(x.v, _mm512_set1_epi32(0x0f0f0f0f))}; }
static inline I high_nibbles(I x) { return {_mm512_and_si512(_mm512_srli_epi32(x.v, 4), _mm512_set1_epi32(0x0f0f0f0f))}; }
static inline I load_pairs(const int8_t* p) { return {_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p))}; }  // of bytes, widened
// Two 16-bit numbers of each lane, multiplied and added up.
static inline I dot_pairs(I sum, I w, I a) {
#ifdef __AVX512VNNI__
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.v) : "v"(w.v), "v"(a.v));
  return sum;
#else
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(w.v, a.v))};
#endif
}
// Four unsigned bytes of each lane of `w` times four signed ones of `a`, added up.
static inline I dot(I sum, I w, I a) {
#ifdef __AVX512VNNI__
  // Written out: gcc 12 takes the intrinsic's sum for an input beside the output, copies it, and spills half of a tile.
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(w.v), "v"(a.v));
  return sum;
#else  // through 16 bits: the instruction for bytes saturates
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(w.v, _mm512_set1_epi16(255)), _mm512_srai_epi16(_mm512_slli_epi16(a.v, 8), 8));
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(w.v, 8), _mm512_srai_epi16(a.v, 8));
  return {_mm512_add_epi32(sum.v, _mm512_add_epi32(even, odd))};
#endif
}
// Written out, because gcc takes the intrinsics for code without effect, and drops loops and functions that only prefetch.
static inline void prefetch(const void* p) { asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p))); }
static inline void prefetch_l2(const void* p) { asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p))); }

}  // namespace TANDEM_VARIANT
}  // namespace tandem
