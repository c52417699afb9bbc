// Eight floats in an AVX register, with FMA.
#pragma once
#include <immintrin.h>

#include "common.h"

namespace tandem {
namespace TANDEM_VARIANT {

constexpr int W = 8;
struct V { __m256 v; };

static inline V zero() { return {_mm256_setzero_ps()}; }
static inline V splat(float x) { return {_mm256_set1_ps(x)}; }
static inline V load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline V load(const bf16* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16))};
}
static inline void store(float* p, V x) { _mm256_storeu_ps(p, x.v); }
static inline void store(bf16* p, V x) {
  const __m256i u = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q)));
  r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(r));
}
static inline void store_two(bf16* p, V x, V y) {
  store(p, x);
  store(p + W, y);
}
static inline V operator+(V a, V b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline V operator-(V a, V b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline V operator*(V a, V b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline V operator/(V a, V b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline V fma(V a, V b, V c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
static inline V max(V a, V b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline V min(V a, V b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline V round(V a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static inline V scale2(V x, V whole) {  // x * 2^whole, for -127 <= whole <= 127
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(whole.v), _mm256_set1_epi32(127));
  return {_mm256_mul_ps(x.v, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)))};
}
static inline void split(V x, V& whole, V& fraction) {  // x in its floor, and the rest
  whole = {_mm256_floor_ps(x.v)};
  fraction = x - whole;
}
static inline V add_if_at_least(V sum, V x, V threshold, V term) {  // by lanes: sum + term where x >= threshold
  return {_mm256_add_ps(sum.v, _mm256_and_ps(_mm256_cmp_ps(x.v, threshold.v, _CMP_GE_OQ), term.v))};
}
static inline unsigned at_least(V x, V threshold) {  // a bit a lane
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x.v, threshold.v, _CMP_GE_OQ)));
}
constexpr float kExp2Floor = -127.0f;  // scale2(1, this) is exactly 0
static inline float sum(V a) {
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}
static inline float highest(V a) {
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
static inline V keep(V x, int low, int high, float other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i in = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(low), lane),
                                         _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
  return {_mm256_blendv_ps(_mm256_set1_ps(other), x.v, _mm256_castsi256_ps(in))};
}
static inline V first_of_pairs(const void* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)p), 16))};
}
static inline V second_of_pairs(const void* p) {  // by shifts: a mask would take the register that the tile's sums need
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(_mm256_loadu_si256((const __m256i*)p), 16), 16))};
}
static inline V load(const int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)))};
}
static inline void store(int8_t* p, V x) {  // whole numbers from -128 to 127
  const __m256i whole = _mm256_cvtps_epi32(x.v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(words, words));
}
static inline void store(int16_t* p, V x) {
  const __m256i whole = _mm256_cvtps_epi32(x.v);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}
static inline V load_half(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
static inline V load(const fp8* p) {  // by its bits: below the smallest exponent the step is fixed
  const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
  const __m256i size = _mm256_and_si256(x, _mm256_set1_epi32(127)), sign = _mm256_slli_epi32(_mm256_srli_epi32(x, 7), 31);
  const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(size), _mm256_set1_ps(0x1p-9f));
  const __m256 large = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(size, 20), _mm256_set1_epi32(120 << 23)));
  const __m256 value = _mm256_blendv_ps(large, small, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), size)));
  return {_mm256_or_ps(value, _mm256_castsi256_ps(sign))};
}
static inline V abs(V a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }

// Eight lanes of 32 bits, for sums of products of bytes.
struct I { __m256i v; };
static inline I splat_int(int32_t x) { return {_mm256_set1_epi32(x)}; }
static inline I load_ints(const void* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
static inline I add(I a, I b) { return {_mm256_add_epi32(a.v, b.v)}; }
static inline V to_floats(I x) { return {_mm256_cvtepi32_ps(x.v)}; }
static inline I low_nibbles(I x) { return {_mm256_and_si256(x.v, _mm256_set1_epi32(0x0f0f0f0f))}; }
static inline I high_nibbles(I x) { return {_mm256_and_si256(_mm256_srli_epi32(x.v, 4), _mm256_set1_epi32(0x0f0f0f0f))}; }
static inline I load_pairs(const int8_t* p) { return {_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p))}; }  // of bytes, widened
// Two 16-bit numbers of each lane, multiplied and added up.
static inline I dot_pairs(I sum, I w, I a) { return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(w.v, a.v))}; }
// Four unsigned bytes of each lane of `w` times four signed ones of `a`, added up; through 16 bits: the instruction for bytes saturates.
static inline I dot(I sum, I w, I a) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w.v, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(a.v, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w.v, 8), _mm256_srai_epi16(a.v, 8));
  return {_mm256_add_epi32(sum.v, _mm256_add_epi32(even, odd))};
}
// Written out, because gcc takes the intrinsics for code without effect, and drops loops and functions that only prefetch.
static inline void prefetch(const void* p) { asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p))); }
static inline void prefetch_l2(const void* p) { asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p))); }

}  // namespace TANDEM_VARIANT
}  // namespace tandem
