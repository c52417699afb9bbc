// Turns the kernels, compiled for one instruction set, into that set's entry in the table. Each variant_*.cpp includes this once,
// after its vectors and tiles. TANDEM_STUB: the compiler doesn't know the set; the entry says so.
#pragma once
#ifndef TANDEM_STUB
#include "sample.h"
#include "step.h"

namespace tandem {
namespace TANDEM_VARIANT {

static void step(Decoder& d, const StepArgs& args, int thread) { Step(d, args, thread).run(); }

// scratch: for each row w.k * 9 bytes.
static void gemm(const float* a, const Matrix& w, int m, float* c, char* scratch) {
  const int64_t rows = m + 32, groups = is_by_channel(w.form) ? 1 : w.k / kRoundGroup;
  Inputs in{scratch, w.k, nullptr, nullptr, groups};
  auto* scales = reinterpret_cast<float*>(scratch + round_up(rows * w.k, 64));
  auto* starts = reinterpret_cast<Start*>(scales + rows * groups);
  for (int64_t r = 0; r < m; ++r) {
    const float* x = a + r * w.k;
    if (is_integer(w.form)) round_row(x, w.k, w, reinterpret_cast<int8_t*>(scratch) + r * w.k, scales + r * groups, starts + r * groups);
    else if (product_of(w.form).input_bytes == 2) convert_row(x, w.k, reinterpret_cast<bf16*>(scratch) + r * w.k);
    else convert_row(x, w.k, reinterpret_cast<float*>(scratch) + r * w.k);
  }
  if (is_integer(w.form)) {
    in.scale = scales;
    in.start = starts;
  }
  Team team(1, 0, 0);
  multiply(Worker(&team, 0), w, in, m, StoreRows{c, w.n, nullptr});
}

template <class T> static void attention_of(Decoder& d, const StepArgs& args, int layer, const T* attended, float* out, int thread) {
  Step(d, args, thread).attend(layer);
  if (thread == 0)
    for (int64_t i = 0; i < static_cast<int64_t>(args.num_tokens) * d.attention_stride; ++i) out[i] = to_float(attended[i]);
}

static void attention(Decoder& d, const StepArgs& args, int layer, float* out, int thread) {
  if (product_of(d.layers[layer].o.form).input_bytes == 2) attention_of(d, args, layer, d.attended_bf16, out, thread);
  else attention_of(d, args, layer, d.attended, out, thread);
}

#ifdef TANDEM_TILE_AMX
static void enter() { enter_tiles(); }
static void leave() { leave_tiles(); }
#else
static void enter() {}
static void leave() {}
#endif

}  // namespace TANDEM_VARIANT

#define TANDEM_QUOTE_(x) #x
#define TANDEM_QUOTE(x) TANDEM_QUOTE_(x)
#define TANDEM_JOIN_(a, b) a##b
#define TANDEM_JOIN(a, b) TANDEM_JOIN_(a, b)
const Variant* TANDEM_JOIN(variant_, TANDEM_VARIANT)() {
  namespace v = TANDEM_VARIANT;
  constexpr bool rounds = sizeof(v::ProductOf<bf16>::type::A) == 2;
  static const Variant variant = {TANDEM_QUOTE(TANDEM_VARIANT), rounds, v::step, v::gemm, v::attention, v::sample, v::enter, v::leave};
  return &variant;
}

}  // namespace tandem
#else
#include "decoder.h"
#define TANDEM_JOIN_(a, b) a##b
#define TANDEM_JOIN(a, b) TANDEM_JOIN_(a, b)
namespace tandem {
const Variant* TANDEM_JOIN(variant_, TANDEM_VARIANT)() { return nullptr; }
}  // namespace tandem
#endif
