// What happens to single rows: norms, RoPE, activations, and the exponential they need. Rows are padded with zeros to whole panels.
#pragma once
#include "decoder.h"

namespace tandem {
namespace TANDEM_VARIANT {

constexpr float kLog2E = 1.44269504088896341f;

// To 1.5 units in the last place; exactly 0 for minus infinity, so that a masked position adds nothing; a NaN stays one.
static inline V exp2(V x) {
  x = min(splat(127.0f), max(splat(kExp2Floor), x));
  const V whole = round(x), f = x - whole;
  V p = splat(1.540353039338161e-4f);
  p = fma(p, f, splat(1.333355814642844e-3f));
  p = fma(p, f, splat(9.618129107628477e-3f));
  p = fma(p, f, splat(5.550410866482158e-2f));
  p = fma(p, f, splat(2.402265069591007e-1f));
  p = fma(p, f, splat(6.931471805599453e-1f));
  p = fma(p, f, splat(1.0f));
  return scale2(p, whole);
}

// The same of x <= 0 for a softmax over keys and values of a type: to as many bits as its weights keep; 2^0 is 1.
template <class Kv> static inline V weight_of(V x) {
  V whole, f;
  split(max(splat(kExp2Floor), x), whole, f);
  V p;
  if (sizeof(Kv) == 4) {  // to 1e-7
    p = fma(splat(1.8671305002592176e-3f), f, splat(9.017029405158375e-3f));
    p = fma(p, f, splat(5.579991376607768e-2f));
    p = fma(p, f, splat(2.401644499704422e-1f));
    p = fma(p, f, splat(6.93151311820264e-1f));
  } else {  // to 3e-6
    p = fma(splat(1.3426688011243082e-2f), f, splat(5.224246816484632e-2f));
    p = fma(p, f, splat(2.4128020762908337e-1f));
    p = fma(p, f, splat(6.930448445281004e-1f));
  }
  return scale2(fma(p, f, splat(1.0f)), whole);
}

static inline V tanh(V x) { return splat(1.0f) - splat(2.0f) / (exp2(x * splat(2.0f * kLog2E)) + splat(1.0f)); }

template <int Activation> static inline V activate(V x) {
  if (Activation == 0) return x / (splat(1.0f) + exp2(x * splat(-kLog2E)));
  const V u = splat(0.7978845608028654f) * fma(splat(0.044715f) * x, x * x, x);
  return splat(0.5f) * x * (splat(1.0f) + tanh(u));
}

static inline float root_mean_square(const float* x, int padded, int n, float eps) {
  V a = zero(), b = zero();
  for (int i = 0; i < padded; i += 2 * W) {
    const V u = load(x + i), v = load(x + i + W);
    a = fma(u, u, a);
    b = fma(v, v, b);
  }
  return 1.0f / __builtin_sqrtf(sum(a + b) / static_cast<float>(n) + eps);
}

// out = x / rms(x) * weight. The padding of `weight` is zero, so the output's is.
template <class Out> static inline void norm_row(const float* x, const float* weight, int padded, int n, float eps, Out* out) {
  const V scale = splat(root_mean_square(x, padded, n, eps));
  for (int i = 0; i < padded; i += W) store(out + i, load(x + i) * scale * load(weight + i));
}

static inline void add_normed_row(float* x, const float* y, const float* weight, int padded, int n, float eps) {
  const V scale = splat(root_mean_square(y, padded, n, eps));
  for (int i = 0; i < padded; i += W) store(x + i, load(x + i) + load(y + i) * scale * load(weight + i));
}

// Optional norm, then rotation of the pairs (i, i + d/2) by the angles of a position. `table`: cosines, then sines. out: [padded].
static inline void rope_head(const float* in, const float* norm, const float* table, int d, int padded, float eps, float* out) {
  const int half = d / 2;
  if (norm) {
    norm_row(in, norm, padded, d, eps, out);
    in = out;
  }
  const float *cosine = table, *sine = table + half;
  int i = 0;
  for (; i + W <= half; i += W) {
    const V a = load(in + i), b = load(in + half + i), c = load(cosine + i), s = load(sine + i);
    store(out + i, a * c - b * s);
    store(out + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = in[i], b = in[half + i];
    out[i] = a * cosine[i] - b * sine[i];
    out[half + i] = b * cosine[i] + a * sine[i];
  }
  for (i = d; i < padded; ++i) out[i] = 0;
}

template <class Out> static inline void convert_row(const float* x, int padded, Out* out) {
  for (int i = 0; i < padded; i += W) store(out + i, load(x + i));
}

static inline float to(float x, float*) { return x; }
static inline bf16 to(float x, bf16*) { return to_bf16(x); }

}  // namespace TANDEM_VARIANT
}  // namespace tandem
