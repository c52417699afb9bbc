// Products of a step: rows of inputs with a packed matrix, divided among the threads by panels of 32 outputs.
//
// A finished tile is handed to an epilogue while it lies in the first-level cache: bias, residual, activation, argmax.
#pragma once
#include "rows.h"
#include "tile.h"
#include "worker.h"

namespace tandem {
namespace TANDEM_VARIANT {

// Which product multiplies matrices of type B, and which multiplies with keys and values of type B.
template <class B> struct ProductOf { using type = FmaProduct<B>; };
template <class B> struct AttentionProductOf { using type = FmaProduct<B>; };
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

// Rows that go through all panels before the next do: what keeps the inputs in half a second-level cache.
template <class P> static inline int row_block(int k) {
  constexpr int64_t kBytes = 384 * 1024;
  const int rows = static_cast<int>(kBytes / (static_cast<int64_t>(k) * sizeof(typename P::A)));
  return most(rows / P::kRows, 2) * P::kRows;
}

template <class P, class B, class Epilogue>
static void multiply(const Worker& worker, const Matrix& w, const typename P::A* a, int64_t lda, int rows, Epilogue&& finish) {
  const int block = row_block<P>(w.k), panels = w.panels();
  alignas(64) float c[P::kRows * kPanel];
  auto items = worker.items((rows + block - 1) / block * panels);
  for (int i; (i = items.next()) >= 0;) {
    const int panel = i % panels, end = least(rows, (i / panels + 1) * block);
    const char* data = w.data + panel * w.panel_bytes;
    const int first = i / panels * block, tiles = (end - first + P::kRows - 1) / P::kRows;
    // While the tiles compute on this panel they ask for the next: of a panel that they don't wait for, memory is idle else.
    BTile b{&data, 1, w.k / Packing<B>::k, kPanel * 4, kHalf * 4, data + w.panel_bytes, kPanel * 4 / tiles};
    for (int row = first, n; row < end; row += n) {
      n = tile_rows(end - row, P::kRows);
      finish.expect(row, n, panel);
      P::tile(n)(a + row * lda, lda, b, c, kPanel, false);
      finish(c, row, n, panel);
      b.ahead += b.steps * b.ahead_step;
    }
  }
}

// The epilogues. Each gets a tile c[n][32]: rows `row` on, columns 32 * panel on; and before, the announcement of it.

struct StoreRows {  // y = c (+ bias)
  float* y;
  int64_t stride;
  const float* bias;
  void expect(int, int, int) const {}
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
  void expect(int, int, int) const {}
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
