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

struct fp8 { uint8_t bits; };    // e4m3

enum class DType : int32_t { f32 = 0, bf16 = 1, i8 = 2, f16 = 3, u8 = 4 };

// How a matrix lies in memory, and what its product rounds inputs to.
enum class Kind : int32_t { f32 = 0, bf16 = 1, int8 = 2, int4 = 3, fp8 = 4 };
enum class Activations : int32_t { floats = 0, int8_token = 1, int8_group = 2 };
constexpr int32_t kOffset = 1, kWideScales = 2;   // flags: a group has an offset; scales and offsets are float, not half
struct Form {                    // the C ABI's
  Kind kind;
  Activations activations;
  int32_t group;                 // values of a row that share a scale; 0: all
  int32_t flags;
};
TANDEM_INLINE bool is_integer(const Form& f) { return f.kind == Kind::int8 || f.kind == Kind::int4; }
TANDEM_INLINE bool is_by_channel(const Form& f) { return f.kind == Kind::int8 && f.group == 0 && f.activations == Activations::int8_token; }

constexpr int kPanel = 32;      // columns of a weight panel: two tiles of 16, for AMX and for two AVX-512 registers
constexpr int kHalf = 16;       // half a panel; also the KV positions that lie together in the pool
constexpr int kKvTile = 64;     // KV positions between two rescalings of the online softmax
constexpr int kKvChunk = 256;   // KV positions whose partial softmax is merged as one; at fixed places, so that splitting changes nothing
constexpr int kTilesAhead = 2;  // of keys and values that are asked for from memory while one is worked on
constexpr int kMaxTileRows = 96;      // rows (token x head of the group) of an attention tile
constexpr int kMaxHeadDim = 256;
constexpr int kRoundGroup = 32;       // inputs of a product that share a scale when rounded in groups
constexpr int kDeep = 64;             // integer matrices are padded to so many inputs: what an AMX tile takes at once
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

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff;
  union { uint32_t u; float f; } v;
  if (exponent == 31) v.u = sign | 0x7f800000 | fraction << 13;
  else if (exponent) v.u = sign | (exponent + 112) << 23 | fraction << 13;
  else {  // subnormal: fraction * 2^-24
    v.f = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    v.u |= sign;
  }
  return v.f;
}
static inline uint16_t float_to_half(float x) {  // of numbers that a half holds exactly
  union { float f; uint32_t u; } v;
  v.f = x;
  const uint32_t sign = (v.u >> 16) & 0x8000, exponent = (v.u >> 23) & 255;
  if (exponent < 113) {
    v.u &= 0x7fffffff;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(v.f * 16777216.0f));
  }
  return static_cast<uint16_t>(sign | (exponent - 112) << 10 | ((v.u >> 13) & 0x3ff));
}

// How many consecutive k values of one column lie together in a packed matrix: what one 32-bit lane of a dot instruction takes.
template <class T> struct Packing;
template <> struct Packing<float> { static constexpr int k = 1; };
template <> struct Packing<bf16> { static constexpr int k = 2; };
template <> struct Packing<fp8> { static constexpr int k = 1; };
template <> struct Packing<int8_t> { static constexpr int k = 2; };   // of keys and values

}  // namespace tandem
