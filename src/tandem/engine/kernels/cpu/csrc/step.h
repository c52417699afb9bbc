// One step of the engine: all layers for all tokens of the batch, as each thread of the team walks it.
//
// A layer is five phases with a barrier behind each: q, k and v · attention (with RoPE and the KV write, when all decode) ·
// output · gate and up · down. Norms ride in front of products: each thread norms all rows itself when they are few, else they
// are divided and cost one more barrier. So do post norms, which need whole rows.
#pragma once
#include "attention.h"

namespace tandem {
namespace TANDEM_VARIANT {

template <class B> class StepOf {  // B: type of the weights
 public:
  using P = typename ProductOf<B>::type;
  using Act = typename P::A;

  StepOf(Decoder& d, const StepArgs& step, int thread)
      : d_(d), c_(d.config), step_(step), worker_(d.team, thread), rows_(step.num_tokens) {
    own_ = reinterpret_cast<Act*>(d.thread_scratch + thread * d.thread_scratch_bytes);
  }

  void run() {
    embed();
    const float* pending = nullptr;  // weight of the post norm that y is waiting for
    for (int i = 0; i < c_.num_layers; ++i) {
      const Layer& l = d_.layers[i];
      project(l.qkv, normed(l.input_norm, pending), d_.act_stride, StoreRows{d_.qkv, d_.qkv_stride, l.qkv_bias});
      attend(i);
      project_residual(l.o, static_cast<const Act*>(d_.attended), d_.attention_stride);
      mlp(l, normed(l.mlp_norm, l.post_attention_norm));
      project_residual(l.down, static_cast<const Act*>(d_.activated), d_.mlp_stride);
      pending = l.post_mlp_norm;
    }
    if (step_.num_samples) head(pending);
  }

  void attend(int layer) {
    switch (static_cast<DType>(c_.kv_dtype)) {
      case DType::f32: return attend_with<float>(layer);
      case DType::i8: return attend_with<int8_t>(layer);
      default: return attend_with<bf16>(layer);
    }
  }

 private:
  void embed() {
    auto items = worker_.items(rows_);
    for (int t; (t = items.next()) >= 0;) {
      const int64_t id = step_.token_ids[t];
      float* x = d_.x + static_cast<int64_t>(t) * d_.hidden_stride;
      constexpr int pack = Packing<B>::k;
      // Tied: the head's panels hold the same numbers, 4 bytes of a token in every 128.
      const bool tied = d_.embedding.data == nullptr;
      const B* from = tied ? reinterpret_cast<const B*>(d_.head.data + id / kPanel * d_.head.panel_bytes) + id % kPanel * pack
                           : reinterpret_cast<const B*>(d_.embedding.data) + id * c_.hidden;
      const int64_t step = tied ? kPanel * pack : pack;
      for (int i = 0; i < c_.hidden; ++i) x[i] = to_float(from[i / pack * step + i % pack]) * c_.embedding_scale;
    }
    worker_.sync();
  }

  // Inputs of the next product: norm(x), where first x += post_norm(y) if one is pending.
  const Act* normed(const float* weight, const float* pending) {
    const bool alone = rows_ <= kRedundantRows && !pending;
    Act* out = alone ? own_ : static_cast<Act*>(d_.normed);
    auto norm = [&](int r) {
      float* x = d_.x + static_cast<int64_t>(r) * d_.hidden_stride;
      if (pending) add_normed_row(x, d_.y + static_cast<int64_t>(r) * d_.hidden_stride, pending, d_.hidden_stride, c_.hidden, c_.norm_eps);
      norm_row(x, weight, d_.hidden_stride, c_.hidden, c_.norm_eps, out + static_cast<int64_t>(r) * d_.act_stride);
    };
    if (alone) {
      for (int r = 0; r < rows_; ++r) norm(r);
    } else {
      auto items = worker_.items(rows_);
      for (int r; (r = items.next()) >= 0;) norm(r);
      worker_.sync();
    }
    return out;
  }

  template <class Epilogue> void project(const Matrix& w, const Act* a, int64_t stride, Epilogue finish) {
    multiply<P, B>(worker_, w, a, stride, rows_, finish);
    worker_.sync();
  }

  void project_residual(const Matrix& w, const Act* a, int64_t stride) {
    if (c_.post_norms) project(w, a, stride, StoreRows{d_.y, d_.hidden_stride, nullptr});
    else project(w, a, stride, AddRows{d_.x, d_.hidden_stride});
  }

  void mlp(const Layer& l, const Act* a) {
    Act* out = static_cast<Act*>(d_.activated);
    if (c_.activation == 0) project(l.gate_up, a, d_.act_stride, Gate<Act, 0>{out, d_.mlp_stride});
    else project(l.gate_up, a, d_.act_stride, Gate<Act, 1>{out, d_.mlp_stride});
  }

  template <class Kv> void attend_with(int layer) {
    Attention<Kv> attention(d_, step_, layer, worker_.thread);
    using A = typename Attention<Kv>::A;
    if (!d_.decode_only) {  // others will read these keys and values: write all before anyone reads
      const int64_t group = d_.group_size(), dim = d_.kv.padded_dim;
      auto items = worker_.items(rows_);
      for (int t; (t = items.next()) >= 0;)
        for (int h = 0; h < c_.num_kv_heads; ++h)
          attention.rotate_and_write(t, h, static_cast<A*>(d_.query) + (static_cast<int64_t>(h) * c_.max_tokens + t) * group * dim);
      worker_.sync();
    }
    auto items = worker_.items(d_.num_items);
    for (int i; (i = items.next()) >= 0;) attention.attend(d_.items[i], static_cast<Act*>(d_.attended), d_.attention_stride);
    worker_.sync();
  }

  // The last norm and the LM head, for the rows that are sampled.
  void head(const float* pending) {
    const int n = step_.num_samples;
    float* best_value = d_.best_value + static_cast<int64_t>(worker_.thread) * c_.max_tokens;
    int32_t* best_index = d_.best_index + static_cast<int64_t>(worker_.thread) * c_.max_tokens;
    Act* a = static_cast<Act*>(d_.normed);
    auto items = worker_.items(n);
    for (int i; (i = items.next()) >= 0;) {
      const int64_t row = static_cast<int64_t>(step_.sample_rows[i]) * d_.hidden_stride;
      if (pending) add_normed_row(d_.x + row, d_.y + row, pending, d_.hidden_stride, c_.hidden, c_.norm_eps);
      norm_row(d_.x + row, d_.final_norm, d_.hidden_stride, c_.hidden, c_.norm_eps, a + static_cast<int64_t>(i) * d_.act_stride);
      if (step_.hidden_out) copy_hidden(d_.x + row, step_.hidden_out + static_cast<int64_t>(i) * c_.hidden);
    }
    for (int i = 0; i < n; ++i) {
      best_value[i] = -__builtin_inff();
      best_index[i] = 0;
    }
    worker_.sync();
    multiply<P, B>(worker_, d_.head, a, d_.act_stride, n, Logits{step_.logits, c_.vocab, c_.logit_soft_cap, best_value, best_index});
    worker_.sync();
    if (worker_.thread == 0) choose(n);
  }

  void copy_hidden(const float* x, float* out) const {
    const float scale = root_mean_square(x, d_.hidden_stride, c_.hidden, c_.norm_eps);
    for (int i = 0; i < c_.hidden; ++i) out[i] = x[i] * scale * d_.final_norm[i];
  }

  void choose(int n) const {  // of what the threads found the highest; of equals the first
    for (int i = 0; i < n; ++i) {
      float best = d_.best_value[i];
      int32_t index = d_.best_index[i];
      for (int t = 1; t < worker_.team_size(); ++t) {
        const int64_t at = static_cast<int64_t>(t) * c_.max_tokens + i;
        const float value = d_.best_value[at];
        if (value > best || (value == best && d_.best_index[at] < index)) {
          best = value;
          index = d_.best_index[at];
        }
      }
      step_.argmax[i] = index;
    }
  }

  Decoder& d_;
  const Config& c_;
  const StepArgs& step_;
  Worker worker_;
  const int rows_;
  Act* own_;  // a few normed rows of this thread; attention uses the same memory, at other times
};

}  // namespace TANDEM_VARIANT
}  // namespace tandem
