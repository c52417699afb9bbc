// Writing keys and values of a token into the pool, and reading sixteen positions in the order in which products take them.
#pragma once
#include "quantize.h"

namespace tandem {
namespace TANDEM_VARIANT {

static inline char* head_of(const Decoder& d, int pool, int64_t block, int kv_head) {
  return d.pool.data + block * d.kv.block_bytes + pool * d.kv.layer_bytes + kv_head * d.kv.head_bytes;
}
static inline float* key_scales(const Decoder& d, char* head) { return reinterpret_cast<float*>(head + 2 * d.kv.part_bytes); }
static inline float* value_scales(const Decoder& d, char* head) { return key_scales(d, head) + d.kv.block_size; }

// Where (position, i) lies among the keys, or the values, of a block's head. In elements.
static inline int64_t key_at(const KvLayout& l, int position, int i) {
  if (!l.grouped) return static_cast<int64_t>(position) * l.padded_dim + i;
  const int64_t group = static_cast<int64_t>(position / kHalf) * kHalf * l.padded_dim;
  return group + (static_cast<int64_t>(i / l.pack) * kHalf + position % kHalf) * l.pack + i % l.pack;
}
static inline int64_t value_at(const KvLayout& l, int position, int i) {
  if (!l.grouped) return static_cast<int64_t>(position) * l.padded_dim + i;
  return (static_cast<int64_t>(position / l.pack) * l.padded_dim + i) * l.pack + position % l.pack;
}

static inline void narrow(const float* x, float, int n, float* out) { convert_row(x, n, out); }
static inline void narrow(const float* x, float, int n, bf16* out) { convert_row(x, n, out); }
static inline void narrow(const float* x, float inverse, int n, int8_t* out) {
  for (int i = 0; i < n; i += W) store(out + i, round(load(x + i) * splat(inverse)));
}

// 127 steps up to the largest value of a token's head; zeros behind it.
static inline float scale_of(const float* x, int padded) { return largest_of(x, padded) / 127.0f; }

template <class Kv>
static void write_kv(const Decoder& d, int pool, int slot, int kv_head, const float* key, const float* value) {
  const KvLayout& l = d.kv;
  char* head = head_of(d, pool, slot / l.block_size, kv_head);
  const int position = slot % l.block_size;
  float key_inverse = 0, value_inverse = 0;
  if (sizeof(Kv) == 1) {
    const float ks = key_scales(d, head)[position] = scale_of(key, l.padded_dim);
    const float vs = value_scales(d, head)[position] = scale_of(value, l.padded_dim);
    key_inverse = ks > 0 ? 1 / ks : 0;
    value_inverse = vs > 0 ? 1 / vs : 0;
  }
  // Keys go out in packs that lie `key_step` apart, values one by one.
  alignas(64) Kv keys[kMaxHeadDim], values[kMaxHeadDim];
  narrow(key, key_inverse, l.padded_dim, keys);
  narrow(value, value_inverse, l.padded_dim, values);
  constexpr int pack = Packing<Kv>::k;
  Kv* to = reinterpret_cast<Kv*>(head) + key_at(l, position, 0);
  const int64_t key_step = key_at(l, 0, pack), value_step = value_at(l, 0, 1);
  for (int i = 0; i < l.padded_dim; i += pack) __builtin_memcpy(to + i / pack * key_step, keys + i, pack * sizeof(Kv));
  to = reinterpret_cast<Kv*>(head + l.part_bytes) + value_at(l, position, 0);
  for (int i = 0; i < l.padded_dim; ++i) to[i * value_step] = values[i];
}

// Sixteen positions as products take them. Either in the pool itself, or copied to a thread's scratch memory.
struct KvGroup {
  const char* keys;
  const char* values;
};

// Positions [first, first + 16) of which [begin, end) exist for this reader. What lies beside them may be anything, blocks
// given back or another request's leftovers (even NaN, which 0 * NaN would spread): it is never read, or replaced by zeros.
template <class Kv> class KvReader {
 public:
  using B = Kv;
  // `scratch`: 4 groups of keys and values; scales: [64] each, used by int8 only.
  KvReader(const Decoder& d, int pool, const int32_t* table, int kv_head, char* scratch, float* key_scale, float* value_scale)
      : d_(d), pool_(pool), table_(table), kv_head_(kv_head), scratch_(scratch), key_scale_(key_scale), value_scale_(value_scale) {}

  KvGroup read(int g, int first, int begin, int end) {
    if (first >= end || first + kHalf <= begin) {
      clear_scales(g);
      return {d_.zeros, d_.zeros};
    }
    return d_.kv.grouped ? grouped(g, first, end) : gathered(g, first, begin, end);
  }

  // Asks for sixteen positions that are read soon. Blocks lie anywhere: the processor's own prefetching stops at their ends.
  void expect(int first, int end) const {
    if (first >= end || !d_.kv.grouped) return;
    char* head = head_of(d_, pool_, table_[first / d_.kv.block_size], kv_head_);
    const int offset = first % d_.kv.block_size;
    if (sizeof(Kv) == 1) {
      prefetch_l2(key_scales(d_, head) + offset);
      prefetch_l2(value_scales(d_, head) + offset);
    }
    const int64_t bytes = d_.kv.part_bytes / d_.kv.block_size * kHalf;
    // int8 is over too soon for the processor to notice a stream; of wider types it takes the rest once the beginning is asked for.
    const int64_t asked = sizeof(Kv) == 1 ? bytes : least<int64_t>(bytes, 256);
    head += offset / kHalf * bytes;
    for (int64_t i = 0; i < asked; i += 64) {
      prefetch_l2(head + i);
      prefetch_l2(head + d_.kv.part_bytes + i);
    }
  }

  // Where sixteen positions lie, for who asks for them himself; their scales are asked for here.
  void whereabouts(int first, const char*& keys, const char*& values) const {
    char* head = head_of(d_, pool_, table_[first / d_.kv.block_size], kv_head_);
    const int offset = first % d_.kv.block_size;
    prefetch_l2(key_scales(d_, head) + offset);
    prefetch_l2(value_scales(d_, head) + offset);
    keys = head + offset / kHalf * group_elements() * sizeof(Kv);
    values = keys + d_.kv.part_bytes;
  }

 private:
  int64_t group_elements() const { return static_cast<int64_t>(kHalf) * d_.kv.padded_dim; }
  B* staged_keys(int g) { return reinterpret_cast<B*>(scratch_) + 2 * g * group_elements(); }
  B* staged_values(int g) { return staged_keys(g) + group_elements(); }

  KvGroup grouped(int g, int first, int end) {
    const KvLayout& l = d_.kv;
    char* head = head_of(d_, pool_, table_[first / l.block_size], kv_head_);
    const int offset = first % l.block_size;
    const int64_t n = group_elements();
    const Kv* keys = reinterpret_cast<Kv*>(head) + offset / kHalf * n;
    const Kv* values = reinterpret_cast<Kv*>(head + l.part_bytes) + offset / kHalf * n;
    const int valid = least(kHalf, end - first);
    if (sizeof(Kv) == 1) {
      copy_scales(g, 0, key_scales(d_, head) + offset, value_scales(d_, head) + offset, valid);
    } else if (valid < kHalf) {  // whole numbers times a weight of zero are zero, whatever they are
      __builtin_memcpy(static_cast<void*>(staged_values(g)), values, n * sizeof(B));
      blank(staged_values(g), valid);
      values = staged_values(g);
    }
    return {reinterpret_cast<const char*>(keys), reinterpret_cast<const char*>(values)};
  }

  KvGroup gathered(int g, int first, int begin, int end) {
    const KvLayout& l = d_.kv;
    constexpr int pack = Packing<B>::k;
    B *keys = staged_keys(g), *values = staged_values(g);
    __builtin_memset(static_cast<void*>(keys), 0, 2 * group_elements() * sizeof(B));
    clear_scales(g);
    for (int p = first < begin ? begin - first : 0; p < kHalf && first + p < end; ++p) {
      char* head = head_of(d_, pool_, table_[(first + p) / l.block_size], kv_head_);
      const int offset = (first + p) % l.block_size;
      const Kv* k = reinterpret_cast<Kv*>(head) + key_at(l, offset, 0);
      const Kv* v = reinterpret_cast<Kv*>(head + l.part_bytes) + value_at(l, offset, 0);
      for (int i = 0; i < l.padded_dim; ++i) {
        keys[(i / pack * kHalf + p) * pack + i % pack] = k[i];
        values[(p / pack * l.padded_dim + i) * pack + p % pack] = v[i];
      }
      if (sizeof(Kv) == 1) copy_scales(g, p, key_scales(d_, head) + offset, value_scales(d_, head) + offset, 1);
    }
    return {reinterpret_cast<const char*>(keys), reinterpret_cast<const char*>(values)};
  }

  void blank(B* values, int valid) {  // zeros from position `valid` on
    constexpr int pack = Packing<B>::k;
    for (int p = valid; p < kHalf; ++p)
      for (int i = 0; i < d_.kv.padded_dim; ++i) values[(p / pack * d_.kv.padded_dim + i) * pack + p % pack] = B{};
  }
  void clear_scales(int g) {
    if (sizeof(Kv) != 1) return;
    for (int p = 0; p < kHalf; ++p) key_scale_[g * kHalf + p] = value_scale_[g * kHalf + p] = 0;
  }
  void copy_scales(int g, int at, const float* keys, const float* values, int n) {
    if (at == 0 && n < kHalf) clear_scales(g);
    for (int p = 0; p < n; ++p) {
      key_scale_[g * kHalf + at + p] = keys[p];
      value_scale_[g * kHalf + at + p] = values[p];
    }
  }

  const Decoder& d_;
  const int pool_;
  const int32_t* table_;
  const int kv_head_;
  char* scratch_;
  float *key_scale_, *value_scale_;
};

}  // namespace TANDEM_VARIANT
}  // namespace tandem
