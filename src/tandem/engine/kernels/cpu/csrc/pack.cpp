// From rows of a checkpoint to panels of 32 outputs.
#include <cstring>
#include <type_traits>

#include "decoder.h"

namespace tandem {
namespace {

struct half { uint16_t bits; };
float to_float(half h) { return half_to_float(h.bits); }

template <class T> T narrow(float x);
template <> float narrow<float>(float x) { return x; }
template <> bf16 narrow<bf16>(float x) { return to_bf16(x); }

template <class To, class From> To element(From x) {
  using tandem::to_float;
  if constexpr (std::is_same_v<To, From>) return x;
  else return narrow<To>(to_float(x));
}

template <class From, class To> void pack(const PackJob& job, int k_padded, To* out) {
  constexpr int kk = Packing<To>::k;
  for (int column = 0; column < kPanel; ++column) {
    const From* row = static_cast<const From*>(job.rows[column]);
    To* to = out + column * kk;
    int k = 0;
    if (row)
      for (; k < job.k; ++k) to[static_cast<int64_t>(k / kk) * kPanel * kk + k % kk] = element<To>(row[k]);
    for (; k < k_padded; ++k) to[static_cast<int64_t>(k / kk) * kPanel * kk + k % kk] = To{};
  }
}

template <class To> void pack_to(const PackJob& job, int k_padded, char* out) {
  To* to = reinterpret_cast<To*>(out);
  switch (job.from) {
    case DType::f32: return pack<float>(job, k_padded, to);
    case DType::bf16: return pack<bf16>(job, k_padded, to);
    default: return pack<half>(job, k_padded, to);
  }
}

void put_number(const Form& f, char* header, int at, float x) {
  if (f.flags & kWideScales) std::memcpy(header + 4 * at, &x, 4);
  else {
    const uint16_t half = float_to_half(x);
    std::memcpy(header + 2 * at, &half, 2);
  }
}

void pack_codes(const PackJob& job, const Form& f, int k_padded, char* out) {
  const int group = f.group ? f.group : k_padded;
  const int64_t header = header_bytes(f), codes = static_cast<int64_t>(group) * kPanel * (f.kind == Kind::int4 ? 1 : 2) / 2;
  for (int column = 0; column < kPanel; ++column) {
    const uint8_t* row = static_cast<const uint8_t*>(job.rows[column]);
    if (!row) continue;
    for (int g = 0; g * group < job.k; ++g) {
      char* start = out + g * (header + codes);
      put_number(f, start, column, job.scale[column][g]);
      if (f.flags & kOffset) put_number(f, start, kPanel + column, job.offset[column][g]);
      uint8_t* to = reinterpret_cast<uint8_t*>(start + header);
      for (int i = 0; i < group && g * group + i < job.k; ++i) {
        const uint8_t code = row[g * group + i];
        if (f.kind == Kind::fp8) to[i * kPanel + column] = code;
        else if (f.kind == Kind::int8) to[(i / 4 * kPanel + column) * 4 + i % 4] = code;
        else to[(i / 8 * kPanel + column) * 4 + i % 4] |= code << (i % 8 / 4 * 4);
      }
    }
  }
}

}  // namespace

// `out` is zeroed first.
void pack_panel(const PackJob& job, const Form& form, char* out) {
  const int k = padded_inputs(form, job.k);
  if (form.kind == Kind::f32) return pack_to<float>(job, k, out);
  if (form.kind == Kind::bf16) return pack_to<bf16>(job, k, out);
  std::memset(out, 0, packed_panel_bytes(form, job.k));
  pack_codes(job, form, k, out);
}

int padded_inputs(const Form& form, int k) { return static_cast<int>(round_up(k, is_integer(form) && form.group == 0 ? kDeep : kPanel)); }

int64_t packed_panel_bytes(const Form& form, int k) {
  const int64_t padded = padded_inputs(form, k), values = kPanel * padded;
  switch (form.kind) {
    case Kind::f32: return values * 4;
    case Kind::bf16: return values * 2;
    case Kind::int4: return values / 2 + padded / form.group * header_bytes(form);
    default: return values + (form.group ? padded / form.group : 1) * header_bytes(form);
  }
}

void shape_matrix(Matrix& m, const Form& form, int n, int k) {
  m.n = static_cast<int>(round_up(n, kPanel));
  m.k = padded_inputs(form, k);
  m.panel_bytes = packed_panel_bytes(form, k);
  m.form = form;
}

}  // namespace tandem
