// Rounding a product's inputs to int8, and giving back single rows of a packed matrix.
#pragma once
#include "rows.h"

namespace tandem {
namespace TANDEM_VARIANT {

// Codes and sums of x[0, n) under one scale. The sum is that of the codes.
static inline float round_values(const float* x, int n, float inverse, int8_t* codes) {
  const V factor = splat(inverse);
  V a = zero(), b = zero();
  for (int i = 0; i < n; i += 2 * W) {
    const V u = round(load(x + i) * factor), v = round(load(x + i + W) * factor);
    store(codes + i, u);
    store(codes + i + W, v);
    a = a + u;
    b = b + v;
  }
  return sum(a + b);  // whole numbers below 2^24: exact
}

static inline float largest_of(const float* x, int n) {
  V a = zero(), b = zero();
  for (int i = 0; i < n; i += 2 * W) {
    a = max(a, abs(load(x + i)));
    b = max(b, abs(load(x + i + W)));
  }
  return highest(max(a, b));
}

static inline Start start_of(const Form& f, float scale, float sum) {
  Start s;
  if (f.flags & kOffset) s.sum = scale * sum;
  else s.whole = static_cast<int32_t>(sum) * (f.kind == Kind::int4 ? -8 : -128);
  return s;
}

// A row of `n` inputs (a multiple of 32; zeros behind the real ones), rounded as the matrix's product wants it: codes for w.k
// inputs, and a scale and a start for the row or for each 32.
static inline void round_row(const float* x, int n, const Matrix& w, int8_t* codes, float* scales, Start* starts) {
  const Form& f = w.form;
  const bool by_token = f.activations == Activations::int8_token;
  const float of_row = by_token ? largest_of(x, n) / 127.0f : 0;
  if (is_by_channel(f)) {
    *scales = of_row;
    *starts = start_of(f, of_row, round_values(x, n, of_row > 0 ? 1 / of_row : 0, codes));
  } else {
    for (int i = 0; i < n; i += kRoundGroup, ++scales, ++starts) {
      const float scale = by_token ? of_row : largest_of(x + i, kRoundGroup) / 127.0f;
      *scales = scale;
      *starts = start_of(f, scale, round_values(x + i, kRoundGroup, scale > 0 ? 1 / scale : 0, codes + i));
    }
  }
  if (n < w.k) {  // the products' depth
    __builtin_memset(codes + n, 0, w.k - n);
    if (!is_by_channel(f)) {
      *scales = 0;
      *starts = Start{};
    }
  }
}

// Row `id` of a packed matrix, `n` values of it, times `factor`.
static inline void unpack_row(const Matrix& w, int64_t id, int n, float factor, float* out) {
  const char* panel = w.data + id / kPanel * w.panel_bytes;
  const int column = static_cast<int>(id % kPanel);
  const Form& f = w.form;
  if (f.kind == Kind::f32) {
    const float* p = reinterpret_cast<const float*>(panel) + column;
    for (int i = 0; i < n; ++i) out[i] = p[static_cast<int64_t>(i) * kPanel] * factor;
    return;
  }
  if (f.kind == Kind::bf16) {
    const bf16* p = reinterpret_cast<const bf16*>(panel) + column * 2;
    for (int i = 0; i < n; ++i) out[i] = to_float(p[static_cast<int64_t>(i / 2) * kPanel * 2 + i % 2]) * factor;
    return;
  }
  auto number = [&](const char* header, int at) {
    return f.flags & kWideScales ? reinterpret_cast<const float*>(header)[at] : half_to_float(reinterpret_cast<const uint16_t*>(header)[at]);
  };
  const int group = f.group ? f.group : w.k;
  alignas(64) float values[kPanel];
  for (int first = 0; first < n; first += group) {
    const float scale = number(panel, column) * factor;
    const float offset = f.kind == Kind::fp8 ? 0 : f.flags & kOffset ? number(panel, kPanel + column) * factor : scale * (f.kind == Kind::int4 ? -8.0f : -128.0f);
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(panel) + header_bytes(f);
    for (int i = 0; i < group && first + i < n; ++i) {
      float code;
      if (f.kind == Kind::fp8) {
        store(values, load(reinterpret_cast<const fp8*>(codes + static_cast<int64_t>(i) * kPanel + column / W * W)));
        code = values[column % W];
      } else if (f.kind == Kind::int4) {
        code = (codes[(i / 8 * kPanel + column) * 4 + i % 4] >> (i % 8 / 4 * 4)) & 15;
      } else {
        code = codes[(i / 4 * kPanel + column) * 4 + i % 4];
      }
      out[first + i] = code * scale + offset;
    }
    panel += header_bytes(f) + static_cast<int64_t>(group) * kPanel * (f.kind == Kind::int4 ? 1 : 2) / 2;
  }
}

}  // namespace TANDEM_VARIANT
}  // namespace tandem
