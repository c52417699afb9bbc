// One step of the engine: all layers for all tokens of the batch, as each thread of the team walks it.
//
// A layer is five phases with a barrier behind each: q, k and v · attention (with RoPE and the KV write, when all decode) ·
// output · gate and up · down. Norms ride in front of products: each thread norms all rows itself when they are few, else they
// are divided and cost one more barrier. So do post norms, which need whole rows.
#pragma once
#include "attention.h"

#ifdef TANDEM_PROFILE
#include <cstdio>
#endif

namespace tandem {
namespace TANDEM_VARIANT {

// Where the first thread's time goes, in clock cycles by phase, said once a step. Only if compiled with -DTANDEM_PROFILE.
class Profile {
 public:
#ifdef TANDEM_PROFILE
  void passed(const char* phase, int thread) {
    const uint64_t now = __builtin_ia32_rdtsc();
    int i = 0;
    while (i < used_ && names_[i] != phase) ++i;
    if (i == used_) names_[used_++] = phase;
    spent_[i] += now - last_;
    last_ = now;
    if (thread == 0 && phase[0] == '.') {
      for (i = 0; i < used_; ++i) std::fprintf(stderr, "%s %.2f  ", names_[i], static_cast<double>(spent_[i]) * 1e-6);
      std::fprintf(stderr, "Mcycles\n");
    }
  }

 private:
  const char* names_[16];
  uint64_t spent_[16] = {}, last_ = __builtin_ia32_rdtsc();
  int used_ = 0;
#else
  void passed(const char*, int) {}
#endif
};

class Step {
 public:
  Step(Decoder& d, const StepArgs& step, int thread)
      : d_(d), c_(d.config), step_(step), worker_(d.team, thread), rows_(step.num_tokens) {
    constexpr int64_t rows = kRedundantRows + 32;
    char* p = d.thread_scratch + thread * d.thread_scratch_bytes;
    own_ = {p, nullptr, nullptr, nullptr, nullptr};
    own_.codes = reinterpret_cast<int8_t*>(p += round_up(rows * d.act_stride * 4, 64));
    own_.scales = reinterpret_cast<float*>(p += round_up(rows * d.code_stride, 64));
    own_.starts = reinterpret_cast<Start*>(p += round_up(rows * d.max_round_groups * 4, 64));
    row_ = reinterpret_cast<float*>(p += round_up(rows * d.max_round_groups * 4, 64));
    own_.row = row_;
    shared_ = {d.normed, d.codes, d.code_scales, d.code_starts, row_};
  }

  void run() {
    embed();
    passed("embedding");
    const float* pending = nullptr;  // weight of the post norm that y is waiting for
    for (int i = 0; i < c_.num_layers; ++i) {
      const Layer& l = d_.layers[i];
      const Inputs for_qkv = normed(l.qkv, l.input_norm, pending);
      passed("norms");
      project(l.qkv, for_qkv, StoreRows{d_.qkv, d_.qkv_stride, l.qkv_bias});
      passed("qkv");
      attend(i);
      passed("attention");
      const Inputs for_o = finished(l.o, d_.attended, d_.attended_bf16, d_.attention_stride, c_.num_heads * c_.head_dim);
      passed("rounding");
      project_residual(l.o, for_o);
      passed("o");
      const Inputs for_mlp = normed(l.gate_up, l.mlp_norm, l.post_attention_norm);
      passed("norms");
      mlp(l, for_mlp);
      passed("gate, up");
      const Inputs for_down = finished(l.down, d_.activated, d_.activated_bf16, d_.mlp_stride, c_.intermediate);
      passed("rounding");
      project_residual(l.down, for_down);
      passed("down");
      pending = l.post_mlp_norm;
    }
    if (step_.num_samples) head(pending);
    passed(".head");
  }

  void attend(int layer) {
    switch (static_cast<DType>(c_.kv_dtype)) {
      case DType::f32: return attend_with<float>(layer);
      case DType::i8: return attend_with<int8_t>(layer);
      default: return attend_with<bf16>(layer);
    }
  }

 private:
  void passed(const char* phase) { profile_.passed(phase, worker_.thread); }

  struct Room {  // where inputs of a product are put
    void* rows;
    int8_t* codes;
    float* scales;
    Start* starts;
    float* row;  // of one row in floats, on its way to int8
  };

  void embed() {
    const Matrix& w = d_.embedding.data ? d_.embedding : d_.head;
    auto items = worker_.items(rows_);
    for (int t; (t = items.next()) >= 0;)
      unpack_row(w, step_.token_ids[t], c_.hidden, c_.embedding_scale, d_.x + static_cast<int64_t>(t) * d_.hidden_stride);
    worker_.sync();
  }

  // Inputs of w's product that lie in `room`, of rows `stride` apart where they aren't rounded.
  Inputs inputs_in(const Room& room, const Matrix& w, int64_t stride) const {
    if (!is_integer(w.form)) return {room.rows, stride, nullptr, nullptr, 0};
    return {room.codes, d_.code_stride, room.scales, room.starts, is_by_channel(w.form) ? 1 : w.k / kRoundGroup};
  }

  // Writes row r of w's inputs.
  void put_normed(const Room& room, const Matrix& w, int64_t r, const float* x, const float* weight) {
    if (is_integer(w.form)) {
      norm_row(x, weight, d_.hidden_stride, c_.hidden, c_.norm_eps, room.row);
      put_rounded(room, w, r, room.row, d_.hidden_stride);
    } else if (takes_bf16(w)) {
      norm_row(x, weight, d_.hidden_stride, c_.hidden, c_.norm_eps, static_cast<bf16*>(room.rows) + r * d_.act_stride);
    } else {
      norm_row(x, weight, d_.hidden_stride, c_.hidden, c_.norm_eps, static_cast<float*>(room.rows) + r * d_.act_stride);
    }
  }
  void put_rounded(const Room& room, const Matrix& w, int64_t r, const float* x, int n) {
    const int64_t groups = is_by_channel(w.form) ? 1 : w.k / kRoundGroup;
    round_row(x, n, w, room.codes + r * d_.code_stride, room.scales + r * groups, room.starts + r * groups);
  }
  static bool takes_bf16(const Matrix& w) { return product_of(w.form).input_bytes == 2; }

  // Does something for each row: each thread for all of them in a room of its own, or divided, with a barrier behind.
  template <class Put> const Room& each_row(bool alone, int rows, Put put) {
    if (alone) {
      for (int r = 0; r < rows; ++r) put(own_, r);
      return own_;
    }
    auto items = worker_.items(rows);
    for (int r; (r = items.next()) >= 0;) put(shared_, r);
    worker_.sync();
    return shared_;
  }

  // Inputs of the next product: norm(x), where first x += post_norm(y) if one is pending.
  Inputs normed(const Matrix& w, const float* weight, const float* pending) {
    const Room& room = each_row(rows_ <= kRedundantRows && !pending, rows_, [&](const Room& to, int r) {
      float* x = d_.x + static_cast<int64_t>(r) * d_.hidden_stride;
      if (pending) add_normed_row(x, d_.y + static_cast<int64_t>(r) * d_.hidden_stride, pending, d_.hidden_stride, c_.hidden, c_.norm_eps);
      put_normed(to, w, r, x, weight);
    });
    return inputs_in(room, w, d_.act_stride);
  }

  // Inputs of a product that lie there as floats, and may have to be rounded. Their scale needs the whole row.
  Inputs finished(const Matrix& w, const float* rows, const bf16* narrow, int64_t stride, int n) {
    if (!is_integer(w.form)) return {takes_bf16(w) ? static_cast<const void*>(narrow) : rows, stride, nullptr, nullptr, 0};
    const Room& room = each_row(rows_ <= kRedundantRows, rows_, [&](const Room& to, int r) {
      put_rounded(to, w, r, rows + r * stride, static_cast<int>(round_up(n, kPanel)));
    });
    return inputs_in(room, w, stride);
  }

  template <class Epilogue> void project(const Matrix& w, const Inputs& a, Epilogue finish) {
    multiply(worker_, w, a, rows_, finish);
    worker_.sync();
  }

  void project_residual(const Matrix& w, const Inputs& a) {
    if (c_.post_norms) project(w, a, StoreRows{d_.y, d_.hidden_stride, nullptr});
    else project(w, a, AddRows{d_.x, d_.hidden_stride});
  }

  void mlp(const Layer& l, const Inputs& a) {
    if (takes_bf16(l.down)) gate(l, a, d_.activated_bf16);
    else gate(l, a, d_.activated);
  }
  template <class Out> void gate(const Layer& l, const Inputs& a, Out* out) {
    if (c_.activation == 0) project(l.gate_up, a, Gate<Out, 0>{out, d_.mlp_stride});
    else project(l.gate_up, a, Gate<Out, 1>{out, d_.mlp_stride});
  }

  template <class Kv> void attend_with(int layer) {
    Attention<Kv> attention(d_, step_, layer, worker_.thread);
    using A = typename Attention<Kv>::A;
    if (!d_.decode_only) {  // others will read these keys and values: write all before anyone reads
      const int64_t group = d_.group_size(), dim = d_.kv.padded_dim;
      auto items = worker_.items(rows_);
      for (int t; (t = items.next()) >= 0;)
        for (int h = 0; h < c_.num_kv_heads; ++h)
          attention.rotate_and_write(t, h, static_cast<A*>(d_.query) + (static_cast<int64_t>(h) * c_.max_tokens + t) * group * dim,
                                     d_.query_scales + (static_cast<int64_t>(h) * c_.max_tokens + t) * group);
      worker_.sync();
      passed("KV");
    }
    auto items = worker_.items(d_.num_items);
    const bool narrow = takes_bf16(d_.layers[layer].o);
    int i = items.next();
    if (i >= 0) attention.expect(d_.items[i]);
    for (int after; i >= 0; i = after) {
      after = items.next();
      const AttentionItem* next = after >= 0 ? &d_.items[after] : nullptr;
      if (narrow) attention.attend(d_.items[i], next, d_.attended_bf16, d_.attention_stride);
      else attention.attend(d_.items[i], next, d_.attended, d_.attention_stride);
    }
    worker_.sync();
  }

  // The last norm and the LM head, for the rows that are sampled.
  void head(const float* pending) {
    const int n = step_.num_samples;
    float* best_value = d_.best_value + static_cast<int64_t>(worker_.thread) * c_.max_tokens;
    int32_t* best_index = d_.best_index + static_cast<int64_t>(worker_.thread) * c_.max_tokens;
    const Room& room = each_row(n <= kRedundantRows && !pending, n, [&](const Room& to, int i) {
      const int64_t row = static_cast<int64_t>(step_.sample_rows[i]) * d_.hidden_stride;
      if (pending) add_normed_row(d_.x + row, d_.y + row, pending, d_.hidden_stride, c_.hidden, c_.norm_eps);
      put_normed(to, d_.head, i, d_.x + row, d_.final_norm);
      const bool mine = &to == &shared_ || worker_.thread == 0;
      if (step_.hidden_out && mine) copy_hidden(d_.x + row, step_.hidden_out + static_cast<int64_t>(i) * c_.hidden);
    });
    for (int i = 0; i < n; ++i) {
      best_value[i] = -__builtin_inff();
      best_index[i] = 0;
    }
    const Inputs a = inputs_in(room, d_.head, d_.act_stride);
    multiply(worker_, d_.head, a, n, Logits{step_.logits, c_.vocab, c_.logit_soft_cap, best_value, best_index});
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
  Profile profile_;
  Room own_, shared_;  // this thread's, for a few rows (attention uses the same memory, at other times), and that of all
  float* row_;
};

}  // namespace TANDEM_VARIANT
}  // namespace tandem
