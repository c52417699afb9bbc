// Words and sizes that every file shares.
//
// Each instruction set's kernels are compiled in a translation unit of their own, with flags that the machine may not have.
// Therefore nothing here has vague linkage: an `inline` function or a standard container instantiated in such a unit could be the
// copy the linker keeps for all, and would crash elsewhere. Helpers are `static inline` or TANDEM_INLINE, what is built by variant
// lives in the variant's namespace, containers stay out of the kernels.
#pragma once
#include <cstddef>
#include <cstdint>

#define TANDEM_INLINE inline __attribute__((always_inline))

namespace tandem {

struct bf16 { uint16_t bits; };  // storage only; arithmetic is in float

enum class DType : int32_t { f32 = 0, bf16 = 1, i8 = 2, f16 = 3 };

constexpr int kPanel = 32;      // columns of a weight panel: two tiles of 16, for AMX and for two AVX-512 registers
constexpr int kHalf = 16;       // half a panel; also the KV positions that lie together in the pool
constexpr int kKvTile = 64;     // KV positions between two rescalings of the online softmax
constexpr int kKvChunk = 256;   // KV positions whose partial softmax is merged as one; at fixed places, so that splitting changes nothing
constexpr int kMaxTileRows = 96;      // rows (token x head of the group) of an attention tile
constexpr int kMaxHeadDim = 256;
constexpr int kRedundantRows = 4;     // up to here each thread norms all rows itself: cheaper than a barrier

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
template <class T> static inline T least(T a, T b) { return a < b ? a : b; }
template <class T> static inline T most(T a, T b) { return a > b ? a : b; }

static inline float to_float(bf16 x) {
  union { uint32_t u; float f; } v;
  v.u = static_cast<uint32_t>(x.bits) << 16;
  return v.f;
}
static inline float to_float(float x) { return x; }

static inline bf16 to_bf16(float x) {  // to nearest, ties to even; a NaN stays one
  union { float f; uint32_t u; } v;
  v.f = x;
  if (x != x) return bf16{static_cast<uint16_t>((v.u >> 16) | 0x40)};
  return bf16{static_cast<uint16_t>((v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16)};
}

// How many consecutive k values of one column lie together in a packed matrix: what one 32-bit lane of a dot instruction takes.
template <class T> struct Packing;
template <> struct Packing<float> { static constexpr int k = 1; };
template <> struct Packing<bf16> { static constexpr int k = 2; };

}  // namespace tandem
