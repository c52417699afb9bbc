// From rows of a checkpoint to panels of 32 outputs.
#include <cstring>
#include <type_traits>

#include "decoder.h"

namespace tandem {
namespace {

struct half { uint16_t bits; };

float to_float(half h) {
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000) << 16, exponent = (h.bits >> 10) & 31, fraction = h.bits & 0x3ff;
  uint32_t bits;
  if (exponent == 31) bits = sign | 0x7f800000 | fraction << 13;
  else if (exponent) bits = sign | (exponent + 112) << 23 | fraction << 13;
  else {  // subnormal: fraction * 2^-24
    const float f = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    return sign ? -f : f;
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

template <class T> T narrow(float x);
template <> float narrow<float>(float x) { return x; }
template <> bf16 narrow<bf16>(float x) { return to_bf16(x); }

template <class To, class From> To element(From x) {
  using tandem::to_float;
  if constexpr (std::is_same_v<To, From>) return x;
  else return narrow<To>(to_float(x));
}

template <class From, class To> void pack(const PackJob& job, To* out) {
  constexpr int kk = Packing<To>::k;
  for (int column = 0; column < kPanel; ++column) {
    const From* row = static_cast<const From*>(job.rows[column]);
    To* to = out + column * kk;
    int k = 0;
    if (row)
      for (; k < job.k; ++k) to[static_cast<int64_t>(k / kk) * kPanel * kk + k % kk] = element<To>(row[k]);
    for (; k < job.k_padded; ++k) to[static_cast<int64_t>(k / kk) * kPanel * kk + k % kk] = To{};
  }
}

template <class To> void pack_to(const PackJob& job, char* out) {
  To* to = reinterpret_cast<To*>(out);
  switch (job.from) {
    case DType::f32: return pack<float>(job, to);
    case DType::bf16: return pack<bf16>(job, to);
    default: return pack<half>(job, to);
  }
}

}  // namespace

void pack_panel(const PackJob& job, char* out) {
  if (job.to == DType::f32) pack_to<float>(job, out);
  else pack_to<bf16>(job, out);
}

void convert(const void* from, DType from_type, int64_t n, void* to, DType to_type) {
  auto run = [n](auto* in, auto* out) {
    using Out = std::remove_reference_t<decltype(*out)>;
    for (int64_t i = 0; i < n; ++i) out[i] = element<Out>(in[i]);
  };
  auto from_rows = [&](auto* in) {
    if (to_type == DType::f32) run(in, static_cast<float*>(to));
    else run(in, static_cast<bf16*>(to));
  };
  if (from_type == DType::f32) from_rows(static_cast<const float*>(from));
  else if (from_type == DType::bf16) from_rows(static_cast<const bf16*>(from));
  else from_rows(static_cast<const half*>(from));
}

int64_t packed_panel_bytes(DType dtype, int k_padded) { return static_cast<int64_t>(kPanel) * k_padded * (dtype == DType::f32 ? 4 : 2); }

}  // namespace tandem
