// Products of a step: rows of inputs with a packed matrix, divided among the threads by panels of 32 outputs.
//
// A finished tile is handed to an epilogue while it lies in the first-level cache: bias, residual, activation, argmax.
#pragma once
#include "quantize.h"
#include "tile.h"
#include "tile_int.h"
#include "worker.h"

namespace tandem {
namespace TANDEM_VARIANT {

// Which product multiplies matrices of type B, and which multiplies with keys and values of type B.
template <class B> struct ProductOf { using type = FmaProduct<B>; };
template <class B> struct AttentionProductOf { using type = FmaProduct<B>; };
template <> struct AttentionProductOf<int8_t> { using type = PairProduct; };
#if defined(TANDEM_TILE_AMX)
template <> struct ProductOf<bf16> { using type = AmxProduct; };
#elif defined(TANDEM_TILE_BF16)
template <> struct ProductOf<bf16> { using type = DotProduct; };
#endif
#if defined(TANDEM_TILE_BF16)
template <> struct AttentionProductOf<bf16> { using type = DotProduct; };
#endif

// Rows of a tile: the rest divided evenly, so that no tile is left with one or two rows.
static inline int tile_rows(int left, int at_most) {
  const int tiles = (left + at_most - 1) / at_most;
  return (left + tiles - 1) / tiles;
}

// How matrices of a form are multiplied: what their inputs are, how many rows a tile has, and the tile.
struct Product {
  int max_rows, input_bytes;
  void (*tile)(const Inputs& a, int row, int n, const Matrix& w, PanelWalk walk, float* c);
};

template <class B> static void dense(const Inputs& a, int row, int n, const Matrix& w, PanelWalk walk, float* c) {
  using P = typename ProductOf<B>::type;
  constexpr int bytes = sizeof(B) == 1 ? 1 : 4;
  const char* data = walk.data + header_bytes(w.form);
  const BTile b{&data, 1, w.k / Packing<B>::k, kPanel * bytes, kHalf * bytes, walk.ahead, walk.ahead_step * bytes / 4};
  P::tile(n)(static_cast<const typename P::A*>(a.rows) + row * a.stride, a.stride, b, c, kPanel, false);
  if constexpr (sizeof(B) == 1)
    for (int r = 0; r < n; ++r)
      for (int j = 0; j < kPanel; j += W) store(c + r * kPanel + j, load(c + r * kPanel + j) * load_scales(walk.data, true, j));
}
static void by_channel(const Inputs& a, int row, int n, const Matrix& w, PanelWalk walk, float* c) {
  pick_channel<kChannelRows>(n)(a, row, w, walk, c);
}
static void grouped(const Inputs& a, int row, int n, const Matrix& w, PanelWalk walk, float* c) {
  pick_grouped<kGroupedRows>(n, w.form)(a, row, w, walk, c);
}

template <class B> static constexpr Product dense_product() {
  using P = typename ProductOf<B>::type;
  return {P::kRows, sizeof(typename P::A), dense<B>};
}
static inline Product product_of(const Form& f) {
  if (f.kind == Kind::f32) return dense_product<float>();
  if (f.kind == Kind::bf16) return dense_product<bf16>();
  if (f.kind == Kind::fp8) return dense_product<fp8>();
#ifdef TANDEM_TILE_AMX
  if (is_by_channel(f)) return {32, 1, amx_by_channel};
#endif
  if (is_by_channel(f)) return {kChannelRows, 1, by_channel};
  return {kGroupedRows, 1, grouped};
}

// Rows that go through all panels before the next do: what keeps the inputs in half a second-level cache.
static inline int row_block(const Product& p, int k) {
  constexpr int64_t kBytes = 384 * 1024;
  const int rows = static_cast<int>(kBytes / (static_cast<int64_t>(k) * p.input_bytes));
  return most(rows / p.max_rows, 2) * p.max_rows;
}

template <class Epilogue> static void multiply(const Worker& worker, const Matrix& w, const Inputs& a, int rows, Epilogue&& finish) {
  const Product product = product_of(w.form);
  const int block = row_block(product, w.k), panels = w.panels();
  alignas(64) float c[32 * kPanel];
  auto items = worker.items((rows + block - 1) / block * panels);
  for (int i; (i = items.next()) >= 0;) {
    const int panel = i % panels, end = least(rows, (i / panels + 1) * block);
    const int first = i / panels * block, tiles = (end - first + product.max_rows - 1) / product.max_rows;
    // While the tiles compute on this panel they ask for the next: of a panel that they don't wait for, memory is idle else.
    PanelWalk walk{w.data + panel * w.panel_bytes, w.data + (panel + 1) * w.panel_bytes, kPanel * 4 / tiles};
    for (int row = first, n; row < end; row += n) {
      n = tile_rows(end - row, product.max_rows);
      finish.expect(row, n, panel);
      product.tile(a, row, n, w, walk, c);
      finish(c, row, n, panel);
      walk.ahead += w.panel_bytes / tiles;
    }
  }
}

// The epilogues. Each gets a tile c[n][32]: rows `row` on, columns 32 * panel on; and before, the announcement of it.

struct StoreRows {  // y = c (+ bias)
  float* y;
  int64_t stride;
  const float* bias;
  void expect(int row, int n, int panel) const {  // a prompt's outputs lie beyond the second-level cache
    for (int r = 0; r < n; ++r) {
      prefetch(y + (row + r) * stride + panel * kPanel);
      prefetch(y + (row + r) * stride + panel * kPanel + kHalf);
    }
  }
  void operator()(const float* c, int row, int n, int panel) const {
    for (int r = 0; r < n; ++r) {
      float* out = y + (row + r) * stride + panel * kPanel;
      for (int j = 0; j < kPanel; j += W) {
        const V v = load(c + r * kPanel + j);
        store(out + j, bias ? v + load(bias + panel * kPanel + j) : v);
      }
    }
  }
};

struct AddRows {  // x += c
  float* x;
  int64_t stride;
  void expect(int row, int n, int panel) const {
    for (int r = 0; r < n; ++r) {
      prefetch(x + (row + r) * stride + panel * kPanel);
      prefetch(x + (row + r) * stride + panel * kPanel + kHalf);
    }
  }
  void operator()(const float* c, int row, int n, int panel) const {
    for (int r = 0; r < n; ++r) {
      float* out = x + (row + r) * stride + panel * kPanel;
      for (int j = 0; j < kPanel; j += W) store(out + j, load(out + j) + load(c + r * kPanel + j));
    }
  }
};

template <class Out, int Activation> struct Gate {  // out = activation(gate) * up; a panel holds 16 columns of each
  Out* out;
  int64_t stride;
  void expect(int row, int n, int panel) const {
    for (int r = 0; r < n; ++r) prefetch(out + (row + r) * stride + panel * kHalf);
  }
  void operator()(const float* c, int row, int n, int panel) const {
    for (int r = 0; r < n; ++r)
      for (int j = 0; j < kHalf; j += W) {
        const V gate = load(c + r * kPanel + j), up = load(c + r * kPanel + kHalf + j);
        store(out + (row + r) * stride + panel * kHalf + j, activate<Activation>(gate) * up);
      }
  }
};

struct Logits {  // logits, if wanted, and each row's best as far as this thread saw
  float* logits;
  int vocab;
  float soft_cap;
  float* best_value;
  int32_t* best_index;
  void expect(int, int, int) const {}
  void operator()(const float* c, int row, int n, int panel) const {
    const int first = panel * kPanel, valid = least(kPanel, vocab - first);
    for (int r = 0; r < n; ++r) {
      const float* tile = c + r * kPanel;
      V most_of = splat(-__builtin_inff());
      for (int j = 0; j < valid; j += W) most_of = max(most_of, keep(load(tile + j), 0, valid - j, -__builtin_inff()));
      const float value = highest(most_of);
      float& best = best_value[row + r];
      int32_t& index = best_index[row + r];
      if (value > best || (value == best && first < index)) {  // of equals the first, whichever thread saw it
        int j = 0;
        while (j < valid - 1 && tile[j] != value) ++j;
        best = value;
        index = first + j;
      }
      if (logits) write(tile, logits + static_cast<int64_t>(row + r) * vocab + first, valid);
    }
  }

 private:
  void write(const float* tile, float* out, int valid) const {
    alignas(64) float capped[kPanel];
    if (soft_cap > 0) {
      for (int j = 0; j < kPanel; j += W) store(capped + j, splat(soft_cap) * tanh(load(tile + j) * splat(1 / soft_cap)));
      tile = capped;
    }
    if (valid == kPanel)
      for (int j = 0; j < kPanel; j += W) store(out + j, load(tile + j));
    else
      for (int j = 0; j < valid; ++j) out[j] = tile[j];
  }
};

}  // namespace TANDEM_VARIANT
}  // namespace tandem
