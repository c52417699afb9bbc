// Turns the kernels, compiled for one instruction set, into that set's entry in the table. Each variant_*.cpp includes this once,
// after its vectors and tiles. TANDEM_STUB: the compiler doesn't know the set; the entry says so.
#pragma once
#ifndef TANDEM_STUB
#include "sample.h"
#include "step.h"

namespace tandem {
namespace TANDEM_VARIANT {

static void step(Decoder& d, const StepArgs& args, int thread) {
  if (static_cast<DType>(d.config.weight_dtype) == DType::f32) StepOf<float>(d, args, thread).run();
  else StepOf<bf16>(d, args, thread).run();
}

template <class B> static void gemm_of(const float* a, const Matrix& w, int m, float* c, void* scratch) {
  using P = typename ProductOf<B>::type;
  auto* inputs = static_cast<typename P::A*>(scratch);
  for (int r = 0; r < m; ++r) convert_row(a + static_cast<int64_t>(r) * w.k, w.k, inputs + static_cast<int64_t>(r) * w.k);
  Team team(1, 0);
  multiply<P, B>(Worker(&team, 0), w, inputs, w.k, m, StoreRows{c, w.n, nullptr});
}

static void gemm(const float* a, const Matrix& w, DType dtype, int m, float* c, void* scratch) {
  if (dtype == DType::f32) gemm_of<float>(a, w, m, c, scratch);
  else gemm_of<bf16>(a, w, m, c, scratch);
}

template <class B> static void attention_of(Decoder& d, const StepArgs& args, int layer, float* out, int thread) {
  StepOf<B>(d, args, thread).attend(layer);
  const auto* attended = static_cast<const typename StepOf<B>::Act*>(d.attended);
  if (thread == 0)
    for (int64_t i = 0; i < static_cast<int64_t>(args.num_tokens) * d.attention_stride; ++i) out[i] = to_float(attended[i]);
}

static void attention(Decoder& d, const StepArgs& args, int layer, float* out, int thread) {
  if (static_cast<DType>(d.config.weight_dtype) == DType::f32) attention_of<float>(d, args, layer, out, thread);
  else attention_of<bf16>(d, args, layer, out, thread);
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
