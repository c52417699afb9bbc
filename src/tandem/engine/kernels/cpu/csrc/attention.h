// Paged attention for prefill chunks and decodes alike: a tile is some tokens of one sequence with the heads of one KV head.
//
// Flash attention: 64 KV positions at a time, with the running maximum and sum of an online softmax. Tiles and chunks begin at
// fixed positions, whatever the query, the batch or the number of threads; masked positions add exact zeros. So a token's result is
// the same bits whether it came alone or in a chunk.
#pragma once
#include "gemm.h"
#include "kv.h"

namespace tandem {
namespace TANDEM_VARIANT {

template <class Kv> class Attention {
 public:
  using B = Kv;
  using P = typename AttentionProductOf<B>::type;
  using A = typename P::A;

  Attention(Decoder& d, const StepArgs& step, int layer, int thread)
      : d_(d), step_(step), layer_(d.layers[layer]), group_(d.group_size()), dim_(d.kv.padded_dim),
        max_rows_(most(kMaxTileRows, d.group_size())) {
    char* p = d.thread_scratch + thread * d.thread_scratch_bytes;
    const int64_t rows = max_rows_ + 32;
    query_ = carve<A>(p, rows * dim_);
    probabilities_ = carve<A>(p, kStates * kKvTile);
    scores_ = carve<float>(p, kStates * kKvTile);
    chunk_ = {carve<float>(p, rows * dim_), carve<float>(p, rows), carve<float>(p, rows)};
    total_ = {carve<float>(p, rows * dim_), carve<float>(p, rows), carve<float>(p, rows)};
    staging_ = carve<char>(p, 8 * static_cast<int64_t>(kHalf) * dim_ * 4);
    key_scale_ = carve<float>(p, kKvTile);
    value_scale_ = carve<float>(p, kKvTile);
    value_steps_ = carve<float>(p, kKvTile);
    query_scale_ = carve<float>(p, rows);
    tops_ = carve<float>(p, kStates);
    sums_ = carve<float>(p, kStates);
    shrinks_ = carve<float>(p, kStates);
    units_ = carve<float>(p, kStates);
    const Config& c = d.config;
    score_scale_ = c.attention_soft_cap > 0 ? c.attention_scale / c.attention_soft_cap : c.attention_scale * kLog2E;
  }

  // RoPE and KV write for one token's KV head and its query heads, from the projections. `query`: [group][dim].
  void rotate_and_write(int token, int kv_head, A* query, float* scales) {
    const int soon = least(token + 2, step_.num_tokens - 1);  // a prompt's projections lie beyond the second-level cache
    for (int g = 0; g < group_; ++g) ask_for_head(soon, kv_head * group_ + g);
    ask_for_head(soon, d_.config.num_heads + kv_head);
    ask_for_head(soon, d_.config.num_heads + d_.config.num_kv_heads + kv_head);
    rotate_queries(token, kv_head, query, scales);
    write(token, kv_head);
  }

  // `next`: what this thread takes afterwards, or null; the beginning of its keys and values is asked for already.
  template <class Out> void attend(const AttentionItem& item, const AttentionItem* next, Out* out, int64_t out_stride) {
    const int query_start = step_.query_start[item.sequence];
    const int num_queries = step_.query_start[item.sequence + 1] - query_start;
    const int context = step_.context_len[item.sequence];
    rows_ = item.num_tokens * group_;
    first_position_ = context - num_queries + item.first_token;
    token_ = query_start + item.first_token;
    begin_ = layer_.window ? most(0, first_position_ + 1 - layer_.window) : 0;
    end_ = first_position_ + item.num_tokens;
    KvReader<Kv> reader(d_, layer_.pool, table_of(item), item.kv_head, staging_, key_scale_, value_scale_);
    current_ = &item;
    next_ = next;
    if (next) expect(*next, 0, kTilesAhead - tiles_of(item));
    const int64_t tokens = d_.config.max_tokens;
    queries_ = static_cast<A*>(d_.query) + (item.kv_head * tokens + token_) * group_ * dim_;
    scales_of_queries_ = d_.query_scales + (item.kv_head * tokens + token_) * group_;
    if (d_.decode_only) {
      queries_ = query_;
      scales_of_queries_ = query_scale_;
      rotate_queries(token_, item.kv_head, query_, query_scale_);
    }
    if (item.chunk < 0) {
      total_.clear(rows_, dim_);
      for (int c = begin_ / kKvChunk; c <= (end_ - 1) / kKvChunk; ++c) {
        attend_chunk(reader, c, item.kv_head);
        merge(chunk_.values, chunk_.max, chunk_.sum);
      }
      finish(item.kv_head, out, out_stride);
    } else {
      attend_chunk(reader, item.chunk, item.kv_head);
      if (leave_partial(item)) merge_partials(item, out, out_stride);
    }
  }

  // Asks memory for the beginning of an item's keys and values.
  void expect(const AttentionItem& item) const { expect(item, 0, kTilesAhead); }

 private:
  static constexpr int kLane = Packing<B>::k * sizeof(B);   // bytes of a column in a step of a product
  static constexpr int kStates = 32;                        // rows of a tile, and some to spare
  static constexpr float kSteps = 32767.0f, kLowest = -3e38f;

  struct Running {  // softmax under way: values are sums of 2^(score - max) * value
    float *values, *max, *sum;
    void clear(int rows, int dim) {
      for (int r = 0; r < rows; ++r) {
        max[r] = -__builtin_inff();
        sum[r] = 0;
      }
      __builtin_memset(values, 0, sizeof(float) * rows * dim);
    }
  };

  template <class T> static T* carve(char*& p, int64_t n) {
    T* r = reinterpret_cast<T*>(p);
    p += round_up(n * static_cast<int64_t>(sizeof(T)), 64);
    return r;
  }

  // Keys and values that an item reads: from the tile at `start` on, to `end`; before `begin` nothing.
  struct Span { int start, begin, end; };
  Span span_of(const AttentionItem& item) const {
    const int queries = step_.query_start[item.sequence + 1] - step_.query_start[item.sequence];
    const int first = step_.context_len[item.sequence] - queries + item.first_token, end = first + item.num_tokens;
    const int begin = layer_.window ? most(0, first + 1 - layer_.window) : 0;
    if (item.chunk < 0) return {begin / kKvTile * kKvTile, begin, end};
    return {most(item.chunk * kKvChunk, begin / kKvTile * kKvTile), begin, least(end, (item.chunk + 1) * kKvChunk)};
  }
  int tiles_of(const AttentionItem& item) const {
    const Span s = span_of(item);
    return (s.end - s.start + kKvTile - 1) / kKvTile;
  }
  void expect(const AttentionItem& item, int first, int last) const {  // tiles of it
    const Span s = span_of(item);
    const KvReader<Kv> reader(d_, layer_.pool, table_of(item), item.kv_head, nullptr, nullptr, nullptr);
    for (int p = s.start + first * kKvTile; p < s.start + last * kKvTile; p += kHalf)
      if (p + kHalf > s.begin) reader.expect(p, s.end);
  }
  // What is wanted some tiles after the one at `start`: of this item, or of the next. Few rows ask for it while they compute, a
  // little at a time: so many requests at once would have to wait for each other.
  void expect_ahead(int start) {
    const int tiles = tiles_of(*current_), tile = (start - span_of(*current_).start) / kKvTile + kTilesAhead;
    const AttentionItem* item = tile < tiles ? current_ : next_;
    const int there = tile < tiles ? tile : tile - tiles;
    spread_ = few() && d_.kv.grouped && dim_ == 64;
    if (!spread_) {
      if (item) expect(*item, there, there + 1);
      return;
    }
    for (int g = 0; g < kKvTile / kHalf; ++g) keys_ahead_[g] = values_ahead_[g] = d_.zeros;
    if (!item) return;
    const Span s = span_of(*item);
    const KvReader<Kv> reader(d_, layer_.pool, table_of(*item), item->kv_head, nullptr, nullptr, nullptr);
    for (int g = 0; g < kKvTile / kHalf; ++g) {
      const int p = s.start + there * kKvTile + g * kHalf;
      if (p < s.end && p + kHalf > s.begin) reader.whereabouts(p, keys_ahead_[g], values_ahead_[g]);
    }
  }
  const char* const* keys_ahead() const { return spread_ ? keys_ahead_ : nullptr; }
  const char* const* values_ahead() const { return spread_ ? values_ahead_ : nullptr; }

  const float* head(int token, int index) const { return d_.qkv + static_cast<int64_t>(token) * d_.qkv_stride + index * dim_; }
  const float* angles(int token) const {
    return layer_.rope + static_cast<int64_t>(step_.positions[token]) * d_.config.head_dim;
  }

  void ask_for_head(int token, int index) const {
    const float* p = head(token, index);
    for (int i = 0; i < dim_; i += kHalf) prefetch(p + i);
  }

  void rotate_queries(int token, int kv_head, A* query, float* scales) {
    alignas(64) float rotated[kMaxHeadDim];
    for (int g = 0; g < group_; ++g) {
      rope_head(head(token, kv_head * group_ + g), layer_.q_norm, angles(token), d_.config.head_dim, dim_, d_.config.norm_eps, rotated);
      scales[g] = put_query(rotated, query + g * dim_);
    }
  }

  // Where keys are int8, queries are whole numbers too, of 16 bits: they lose less than in bf16.
  float put_query(const float* x, int16_t* out) const {
    const float scale = largest_of(x, dim_) / 32767.0f;
    const V inverse = splat(scale > 0 ? 1 / scale : 0);
    for (int i = 0; i < dim_; i += W) store(out + i, round(load(x + i) * inverse));
    return scale;
  }
  template <class T> float put_query(const float* x, T* out) const {
    convert_row(x, dim_, out);
    return 1;
  }

  void write(int token, int kv_head) {
    alignas(64) float rotated[kMaxHeadDim];
    const Config& c = d_.config;
    rope_head(head(token, c.num_heads + kv_head), layer_.k_norm, angles(token), c.head_dim, dim_, c.norm_eps, rotated);
    write_kv<Kv>(d_, layer_.pool, step_.slot_mapping[layer_.group][token], kv_head, rotated,
                 head(token, c.num_heads + c.num_kv_heads + kv_head));
  }

  void attend_chunk(KvReader<Kv>& reader, int chunk, int kv_head) {
    chunk_.clear(rows_, dim_);
    const int end = least(end_, (chunk + 1) * kKvChunk);
    for (int start = most(chunk * kKvChunk, begin_ / kKvTile * kKvTile); start < end; start += kKvTile) {
      expect_ahead(start);
      // Who reads the newest position writes it; only now, when its surroundings have come from memory.
      if (d_.decode_only && start + kKvTile >= end_) write(token_, kv_head);
      KvGroup groups[kKvTile / kHalf];
      for (int g = 0; g < kKvTile / kHalf; ++g) groups[g] = reader.read(g, start + g * kHalf, begin_, end);
      prepare_scales();
      const int rows = few() ? 4 : P::kRows;
      for (int r = 0, n; r < rows_; r += n) {
        n = tile_rows(rows_ - r, rows);
        attend_rows(groups, start, r, n);
      }
    }
  }

  // A tile of rows with 64 positions, all of it in the first-level cache: scores, weights, weighted values. What no row sees is
  // left out: it would add zeros.
  void attend_rows(const KvGroup* groups, int start, int r, int n) {
    const int seen = visible(r + n - 1, start);
    if (seen <= 0 || (layer_.window && visible(r, start) - layer_.window >= kKvTile)) return;
    const int num_groups = least(kKvTile, seen + kHalf - 1) / kHalf;
    score(groups, num_groups, r, n);
    for (int i = 0; i < n; i += W) {
      store(tops_ + i, splat(-__builtin_inff()));
      store(sums_ + i, zero());
    }
    const bool partly = visible(r, start) < kKvTile || (layer_.window && visible(r + n - 1, start) > layer_.window);
    for (int i = 0; i < n; ++i) {
      const int high = visible(r + i, start);
      tops_[i] = partly ? scale_and_mask<true>(r + i, i, high) : scale_and_mask<false>(r + i, i, high);
    }
    for (int i = 0; i < n; i += W) store(shrinks_ + i, max(splat(kLowest), load(tops_ + i)));
    for (int i = 0; i < n; ++i) partly ? soften<true>(i, visible(r + i, start)) : soften<false>(i, 0);
    // What is done once for a row costs a fraction in a register of rows. Those behind the tile's see nothing and stay as they are.
    for (int i = 0; i < n; i += W) {
      const V before = load(chunk_.max + r + i), top = load(tops_ + i), now = max(before, top);
      const V base = max(now, splat(kLowest)), shrink = exp2(before - base), grow = exp2(top - base);
      store(chunk_.max + r + i, now);
      store(chunk_.sum + r + i, fma(load(chunk_.sum + r + i), shrink, load(sums_ + i) * grow));
      store(shrinks_ + i, shrink);
      store(units_ + i, load(units_ + i) * grow);
    }
    weigh(groups, num_groups, r, n);
  }

  int visible(int row, int start) const { return first_position_ + row / group_ + 1 - start; }  // positions from `start` on

  // Sums of whole numbers are the same bits in whatever tiles.
  bool few() const { return sizeof(Kv) == 1 && W == 16 && rows_ <= 4; }

  // Of int8: keys' scales with what scores are multiplied with anyway; values' scales under the tile's largest.
  void prepare_scales() {
    if (sizeof(Kv) != 1) return;
    V top = zero();
    for (int j = 0; j < kKvTile; j += W) {
      store(key_scale_ + j, load(key_scale_ + j) * splat(score_scale_));
      top = max(top, load(value_scale_ + j));
    }
    widest_ = highest(top);
    const V inverse = splat(steps_under(widest_));
    for (int j = 0; j < kKvTile; j += W) store(value_steps_ + j, load(value_scale_ + j) * inverse);
  }
  static float steps_under(float widest) { return widest > 0 ? kSteps / widest : 0; }

  void score(const KvGroup* groups, int num_groups, int r, int n) {
    if (few()) {
      int64_t columns[kKvTile / kHalf];
      for (int g = 0; g < kKvTile / kHalf; ++g) columns[g] = groups[g].keys - groups[0].keys;
      const BTile b{&groups[0].keys, 1, dim_ / Packing<B>::k, kHalf * kLane, 0, nullptr, 0};
      return wide_pairs(n, queries_, dim_, b, columns, keys_ahead(), scores_, kKvTile);
    }
    for (int g = 0; g < num_groups; g += 2) {
      const BTile b{&groups[g].keys, 1, dim_ / Packing<B>::k, kHalf * kLane, groups[g + 1].keys - groups[g].keys, groups[g].keys, 0};
      P::tile(n)(queries_ + r * dim_, dim_, b, scores_ + g * kHalf, kKvTile, false);
    }
  }

  // A row's scores as exponents of two; returns the highest. What it doesn't see is minus infinity.
  template <bool Partly> float scale_and_mask(int r, int i, int high) {
    constexpr int N = kKvTile / W;
    const float cap = d_.config.attention_soft_cap;
    float* scores = scores_ + i * kKvTile;
    const int low = layer_.window ? high - layer_.window : 0;
    const V factor = splat(sizeof(Kv) == 1 ? scales_of_queries_[r] : score_scale_);
    V top = splat(-__builtin_inff());
    if (cap > 0)
      for (int j = 0; j < kKvTile; j += W) {
        const V s = load(scores + j) * factor;
        store(scores + j, splat(cap * kLog2E) * tanh(sizeof(Kv) == 1 ? s * load(key_scale_ + j) : s));
      }
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      V s = load(scores + j * W);
      if (!(cap > 0)) s = sizeof(Kv) == 1 ? s * factor * load(key_scale_ + j * W) : s * factor;
      if (Partly) s = keep(s, low - j * W, high - j * W, -__builtin_inff());
      store(scores + j * W, s);
      top = max(top, s);
    }
    return highest(top);
  }

  // A row's weights 2^(score - the highest of these), and their sum. A row that sees nothing counts from a floor and gets zeros.
  template <bool Partly> void soften(int i, int high) {
    constexpr int N = kKvTile / W;
    const V base = splat(shrinks_[i]);  // the row's highest, or the floor
    V p[N], total = zero();
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      p[j] = weight_of<Kv>(load(scores_ + i * kKvTile + j * W) - base);
      total = j ? total + p[j] : p[j];
    }
    sums_[i] = sum(total);
    units_[i] = put_weights<Partly>(p, high, probabilities_ + i * kKvTile);
  }

  template <bool, class T> float put_weights(const V* p, int, T* out) {
    for (int j = 0; j < kKvTile / W; ++j) store(out + j * W, p[j]);
    return 1;
  }
  // Of int8 values the scales come in here, and weights become whole numbers of 16 bits. Only what the row sees may decide their step.
  template <bool Partly> float put_weights(const V* p, int high, int16_t* out) {
    constexpr int N = kKvTile / W;
    const int low = layer_.window ? high - layer_.window : 0;
    if constexpr (!Partly) {
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) store(out + j * W, p[j] * load(value_steps_ + j * W));
      return widest_ / kSteps;
    }
    V top = zero();
    for (int j = 0; j < N; ++j) top = max(top, keep(load(value_scale_ + j * W), low - j * W, high - j * W, 0.0f));
    const float widest = highest(top);
    const V inverse = splat(steps_under(widest));
    for (int j = 0; j < N; ++j) store(out + j * W, p[j] * (load(value_scale_ + j * W) * inverse));
    return widest / kSteps;
  }

  void weigh(const KvGroup* groups, int num_groups, int r, int n) {
    constexpr int64_t columns[4] = {0, kHalf * kLane, 2 * kHalf * kLane, 3 * kHalf * kLane};
    alignas(64) float sums[P::kRows * kPanel > 4 * 64 ? P::kRows * kPanel : 4 * 64];
    const bool wide = few() && dim_ % 64 == 0;
    const int width = wide ? 64 : kPanel;
    for (int i = 0; i < dim_; i += width) {
      const char* segments[kKvTile / kHalf];
      for (int g = 0; g < num_groups; ++g) segments[g] = groups[g].values + i * kLane;
      const BTile b{segments, num_groups, kHalf / Packing<B>::k, dim_ * kLane, kHalf * kLane, segments[0], 0};
      if (wide) wide_pairs(n, probabilities_, kKvTile, b, columns, values_ahead(), sums, width);
      else P::tile(n)(probabilities_, kKvTile, b, sums, width, false);
      for (int q = 0; q < n; ++q) {
        float* values = chunk_.values + static_cast<int64_t>(r + q) * dim_ + i;
        const V unit = splat(units_[q]), shrink = splat(shrinks_[q]);
        for (int j = 0; j < width; j += W) store(values + j, fma(load(sums + q * width + j), unit, load(values + j) * shrink));
      }
    }
  }

  // Takes a chunk's softmax into the total. Into an empty total this copies, bit by bit.
  void merge(const float* values, const float* maxima, const float* sums) {
    for (int r = 0; r < rows_; r += W) {
      const int n = least(W, rows_ - r);
      const V before = load(total_.max + r), top = keep(load(maxima + r), 0, n, -__builtin_inff()), now = max(before, top);
      const V base = max(now, splat(kLowest)), mine = exp2(before - base), theirs = exp2(top - base);
      store(total_.max + r, now);
      store(total_.sum + r, fma(load(total_.sum + r), mine, keep(load(sums + r), 0, n, 0.0f) * theirs));
      store(shrinks_, mine);
      store(units_, theirs);
      for (int i = 0; i < n; ++i) {
        float* to = total_.values + static_cast<int64_t>(r + i) * dim_;
        const float* from = values + static_cast<int64_t>(r + i) * dim_;
        const V a = splat(shrinks_[i]), b = splat(units_[i]);
        for (int j = 0; j < dim_; j += W) store(to + j, fma(load(from + j), b, load(to + j) * a));
      }
    }
  }

  template <class Out> void finish(int kv_head, Out* out, int64_t out_stride) {
    const int d = d_.config.head_dim;
    for (int r = 0; r < rows_; ++r) {
      const V scale = splat(1.0f / total_.sum[r]);
      const float* values = total_.values + static_cast<int64_t>(r) * dim_;
      Out* to_row = out + (token_ + r / group_) * out_stride + (kv_head * group_ + r % group_) * d;
      int i = 0;
      for (; i + W <= d; i += W) store(to_row + i, load(values + i) * scale);
      for (; i < d; ++i) to_row[i] = to(values[i] * (1.0f / total_.sum[r]), static_cast<Out*>(nullptr));
    }
  }

  const int32_t* table_of(const AttentionItem& item) const {
    return step_.block_tables[layer_.group] + static_cast<int64_t>(item.sequence) * step_.max_blocks;
  }

  float* partial(const Split& split, int chunk) const {
    return d_.partials + (split.first_partial + chunk) * static_cast<int64_t>(group_) * (dim_ + 2);
  }

  bool leave_partial(const AttentionItem& item) {  // true: all chunks are there
    Split& split = d_.splits[item.split];
    float* p = partial(split, item.chunk);
    __builtin_memcpy(p, chunk_.max, group_ * sizeof(float));
    __builtin_memcpy(p + group_, chunk_.sum, group_ * sizeof(float));
    __builtin_memcpy(p + 2 * group_, chunk_.values, sizeof(float) * group_ * dim_);
    return __atomic_sub_fetch(&split.remaining, 1u, __ATOMIC_ACQ_REL) == 0;
  }

  template <class Out> void merge_partials(const AttentionItem& item, Out* out, int64_t out_stride) {
    Split& split = d_.splits[item.split];
    split.remaining = split.num_chunks;  // for the next layer, which is behind a barrier
    total_.clear(rows_, dim_);
    for (int c = 0; c < split.num_chunks; ++c) {
      const float* p = partial(split, c);
      merge(p + 2 * group_, p, p + group_);
    }
    finish(item.kv_head, out, out_stride);
  }

  Decoder& d_;
  const StepArgs& step_;
  const Layer& layer_;
  const int group_, dim_, max_rows_;
  int rows_ = 0, first_position_ = 0, token_ = 0, begin_ = 0, end_ = 0;
  const A* queries_ = nullptr;
  A *query_, *probabilities_;
  float* scores_;
  Running chunk_, total_;
  char* staging_;
  float *key_scale_, *value_scale_, *value_steps_, *query_scale_;
  float *tops_, *sums_, *shrinks_, *units_;   // by row of a tile: highest score, sum of weights, what to multiply old and new values with
  const float* scales_of_queries_ = nullptr;
  float score_scale_, widest_ = 0;
  const AttentionItem* next_ = nullptr;
  const char *keys_ahead_[kKvTile / kHalf], *values_ahead_[kKvTile / kHalf];
  bool spread_ = false;
  const AttentionItem* current_ = nullptr;
};

}  // namespace TANDEM_VARIANT
}  // namespace tandem
