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
    probabilities_ = carve<A>(p, rows * kKvTile);
    scores_ = carve<float>(p, rows * kKvTile);
    chunk_ = {carve<float>(p, rows * dim_), carve<float>(p, rows), carve<float>(p, rows)};
    total_ = {carve<float>(p, rows * dim_), carve<float>(p, rows), carve<float>(p, rows)};
    staging_ = carve<char>(p, 8 * static_cast<int64_t>(kHalf) * dim_ * 4);
    key_scale_ = carve<float>(p, kKvTile);
    value_scale_ = carve<float>(p, kKvTile);
    tops_ = carve<float>(p, rows);
    bases_ = carve<float>(p, rows);
    shrinks_ = carve<float>(p, rows);
    query_scale_ = carve<float>(p, rows);
    units_ = carve<float>(p, rows);
  }

  // RoPE and KV write for one token's KV head and its query heads, from the projections. `query`: [group][dim].
  void rotate_and_write(int token, int kv_head, A* query, float* scales) {
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
    if (next) expect(*next);
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

  void expect(const AttentionItem& item) const {
    const int queries = step_.query_start[item.sequence + 1] - step_.query_start[item.sequence], context = step_.context_len[item.sequence];
    const int first = context - queries + item.first_token, begin = layer_.window ? most(0, first + 1 - layer_.window) : 0;
    const int start = item.chunk < 0 ? begin / kKvTile * kKvTile : item.chunk * kKvChunk;
    const KvReader<Kv> reader(d_, layer_.pool, table_of(item), item.kv_head, nullptr, nullptr, nullptr);
    for (int g = 0; g < kKvTile; g += kHalf) reader.expect(most(start + g, begin / kHalf * kHalf), first + item.num_tokens);
  }

 private:
  static constexpr int kLane = Packing<B>::k * sizeof(B);   // bytes of a column in a step of a product

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

  const float* head(int token, int index) const { return d_.qkv + static_cast<int64_t>(token) * d_.qkv_stride + index * dim_; }
  const float* angles(int token) const {
    return layer_.rope + static_cast<int64_t>(step_.positions[token]) * d_.config.head_dim;
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
      // Who reads the newest position writes it; only now, when its surroundings have come from memory.
      if (d_.decode_only && start + kKvTile >= end_) write(token_, kv_head);
      KvGroup groups[kKvTile / kHalf];
      for (int g = 0; g < kKvTile / kHalf; ++g) {
        reader.expect(start + kKvTile + g * kHalf, end_);
        groups[g] = reader.read(g, start + g * kHalf, begin_, end);
      }
      score(groups);
      soften(start);
      weigh(groups, least(kKvTile, end - start));
    }
  }

  // Sums of whole numbers are the same bits in whatever tiles.
  bool few() const { return sizeof(Kv) == 1 && W == 16 && rows_ <= 4; }

  void score(const KvGroup* groups) {
    if (few()) {
      int64_t columns[kKvTile / kHalf];
      for (int g = 0; g < kKvTile / kHalf; ++g) columns[g] = groups[g].keys - groups[0].keys;
      const BTile b{&groups[0].keys, 1, dim_ / Packing<B>::k, kHalf * kLane, 0, nullptr, 0};
      return wide_pairs(rows_, queries_, dim_, b, columns, scores_, kKvTile);
    }
    for (int g = 0; g < kKvTile / kHalf; g += 2) {
      if (groups[g].keys == d_.zeros && groups[g + 1].keys == d_.zeros) continue;  // masked, whatever is left there
      const BTile b{&groups[g].keys, 1, dim_ / Packing<B>::k, kHalf * kLane, groups[g + 1].keys - groups[g].keys, groups[g].keys, 0};
      for (int r = 0, n; r < rows_; r += n) {
        n = tile_rows(rows_ - r, P::kRows);
        P::tile(n)(queries_ + r * dim_, dim_, b, scores_ + r * kKvTile + g * kHalf, kKvTile, false);
      }
    }
  }

  // Scores to weights 2^(score - max), the running values rescaled to the new maximum. First and last over rows, in between over
  // registers of rows: what is done once for a row costs a sixteenth. A row that sees nothing yet counts from 0 and adds zeros.
  void soften(int start) {
    for (int r = 0; r < rows_; ++r) tops_[r] = scale_and_mask(r, start);
    bool rescale = false;
    for (int r = 0; r < rows_; r += W) {
      const V before = load(chunk_.max + r), now = max(before, load(tops_ + r));
      const V base = max(now, splat(-3e38f));
      const V shrink = exp2(before - base);
      store(chunk_.max + r, now);
      store(bases_ + r, base);
      store(shrinks_ + r, shrink);
      rescale |= sum(keep(splat(1.0f) - shrink, 0, rows_ - r, 0.0f)) > 0;
    }
    for (int r = 0; r < rows_; ++r) tops_[r] = weights_of(r);
    for (int r = 0; r < rows_; r += W) store(chunk_.sum + r, fma(load(chunk_.sum + r), load(shrinks_ + r), load(tops_ + r)));
    if (rescale)
      for (int r = 0; r < rows_; ++r) {
        const V shrink = splat(shrinks_[r]);
        float* values = chunk_.values + static_cast<int64_t>(r) * dim_;
        for (int i = 0; i < dim_; i += W) store(values + i, load(values + i) * shrink);
      }
  }

  float scale_and_mask(int r, int start) {  // returns the row's highest
    const Config& c = d_.config;
    const int position = first_position_ + r / group_;
    const int high = position + 1 - start, low = layer_.window ? high - layer_.window : 0;
    float* scores = scores_ + r * kKvTile;
    V top = splat(-__builtin_inff());
    for (int j = 0; j < kKvTile; j += W) {
      V s = load(scores + j);
      if (sizeof(Kv) == 1) s = s * (load(key_scale_ + j) * splat(scales_of_queries_[r]));
      if (c.attention_soft_cap > 0)
        s = splat(c.attention_soft_cap * kLog2E) * tanh(s * splat(c.attention_scale / c.attention_soft_cap));
      else
        s = s * splat(c.attention_scale * kLog2E);
      if (high < kKvTile || low > 0) s = keep(s, low - j, high - j, -__builtin_inff());
      store(scores + j, s);
      top = max(top, s);
    }
    return highest(top);
  }

  float weights_of(int r) {  // returns their sum
    const V base = splat(bases_[r]);
    V total = zero();
    for (int j = 0; j < kKvTile; j += W) {
      const V p = exp2(load(scores_ + r * kKvTile + j) - base);
      total = total + p;
      put_weights(r, j, p, probabilities_);
    }
    finish_weights(r, probabilities_);
    return sum(total);
  }

  template <class T> void put_weights(int r, int j, V p, T* out) { store(out + r * kKvTile + j, p); }
  template <class T> void finish_weights(int, T*) {}
  // Of int8 values the scales come in here, and weights become whole numbers of 16 bits under a scale for the row.
  void put_weights(int r, int j, V p, int16_t*) { store(scores_ + r * kKvTile + j, p * load(value_scale_ + j)); }
  void finish_weights(int r, int16_t* out) {
    const float* weights = scores_ + r * kKvTile;
    units_[r] = largest_of(weights, kKvTile) / 32767.0f;
    const V inverse = splat(units_[r] > 0 ? 1 / units_[r] : 0);
    for (int j = 0; j < kKvTile; j += W) store(out + r * kKvTile + j, round(load(weights + j) * inverse));
  }

  void weigh_few(const KvGroup* groups, int num_groups) {
    constexpr int64_t columns[4] = {0, kHalf * kLane, 2 * kHalf * kLane, 3 * kHalf * kLane};
    alignas(64) float sums[4 * 64];
    for (int i = 0; i < dim_; i += 64) {
      const char* segments[kKvTile / kHalf];
      for (int g = 0; g < num_groups; ++g) segments[g] = groups[g].values + i * kLane;
      wide_pairs(rows_, probabilities_, kKvTile, BTile{segments, num_groups, kHalf / Packing<B>::k, dim_ * kLane, 0, nullptr, 0}, columns, sums, 64);
      for (int r = 0; r < rows_; ++r) {
        float* values = chunk_.values + static_cast<int64_t>(r) * dim_ + i;
        for (int j = 0; j < 64; j += W) store(values + j, fma(load(sums + r * 64 + j), splat(units_[r]), load(values + j)));
      }
    }
  }

  void weigh(const KvGroup* groups, int positions) {
    const int num_groups = (positions + kHalf - 1) / kHalf;
    if (few() && dim_ % 64 == 0) return weigh_few(groups, num_groups);
    for (int i = 0; i < dim_; i += kPanel) {
      const char* segments[kKvTile / kHalf];
      for (int g = 0; g < num_groups; ++g) segments[g] = groups[g].values + i * kLane;
      const BTile b{segments, num_groups, kHalf / Packing<B>::k, dim_ * kLane, kHalf * kLane, segments[0], 0};
      for (int r = 0, n; r < rows_; r += n) {
        n = tile_rows(rows_ - r, P::kRows);
        float* values = chunk_.values + static_cast<int64_t>(r) * dim_ + i;
        if (sizeof(Kv) != 1) {
          P::tile(n)(probabilities_ + r * kKvTile, kKvTile, b, values, dim_, true);
          continue;
        }
        alignas(64) float sums[P::kRows * kPanel];
        P::tile(n)(probabilities_ + r * kKvTile, kKvTile, b, sums, kPanel, false);
        for (int q = 0; q < n; ++q)
          for (int j = 0; j < kPanel; j += W)
            store(values + q * dim_ + j, fma(load(sums + q * kPanel + j), splat(units_[r + q]), load(values + q * dim_ + j)));
      }
    }
  }

  // Takes a chunk's softmax into the total. Into an empty total this copies, bit by bit.
  void merge(const float* values, const float* maxima, const float* sums) {
    for (int r = 0; r < rows_; ++r) {
      if (maxima[r] == -__builtin_inff()) continue;
      const float now = most(total_.max[r], maxima[r]);
      const float mine = exp2(total_.max[r] - now), theirs = exp2(maxima[r] - now);
      total_.max[r] = now;
      total_.sum[r] = total_.sum[r] * mine + sums[r] * theirs;
      float* to = total_.values + static_cast<int64_t>(r) * dim_;
      const float* from = values + static_cast<int64_t>(r) * dim_;
      for (int i = 0; i < dim_; i += W) store(to + i, fma(load(from + i), splat(theirs), load(to + i) * splat(mine)));
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
  float *key_scale_, *value_scale_, *tops_, *bases_, *shrinks_, *query_scale_, *units_;
  const float* scales_of_queries_ = nullptr;
};

}  // namespace TANDEM_VARIANT
}  // namespace tandem
