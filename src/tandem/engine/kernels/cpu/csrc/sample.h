// A token for each of some rows of logits: the likely set (min_p, top_k, top_p) and one draw from it, as sampling/draw.py says.
//
// Nothing is sorted. Weights exp((x - max) / temperature) are laid down once; an element of the falling order, "where the running
// sum passes this" or "number k", is then found by narrowing a band of weights: each pass over the row sums and counts what lies
// above some thresholds and keeps the part between two of them, until so few are in it that they can be walked through one by one.
// The order is by weight, then by id; a row's result depends on nothing but the row.
#pragma once
#include "rows.h"
#include "worker.h"

namespace tandem {
namespace TANDEM_VARIANT {

constexpr int kSampleBlock = 256;  // elements whose weights are summed in single precision, and that are skipped as one
static_assert(kSampleBlock == kSampleBlockSize, "sample_scratch_bytes() counts on it");

class RowSampler {
 public:
  RowSampler(int vocab, char* scratch) : n_(vocab), blocks_((vocab + kSampleBlock - 1) / kSampleBlock) {
    keys_ = reinterpret_cast<uint64_t*>(scratch);
    sums_ = reinterpret_cast<double*>(keys_ + static_cast<int64_t>(blocks_) * kSampleBlock);
    weights_ = reinterpret_cast<float*>(sums_ + round_up(blocks_, 8));
    tops_ = weights_ + static_cast<int64_t>(blocks_) * kSampleBlock;
  }

  int choose(const float* logits, float temperature, int top_k, double top_p, double min_p, double uniform) {
    logits_ = logits;
    if (temperature <= 0) return first_best();
    max_ = row_max();
    scale_ = static_cast<float>(1.4426950408889634 / temperature);
    if (top_k <= 0 && top_p >= 1 && min_p <= 0) return in_order_of_ids(uniform);
    everything_ = Above{lay_down<true>(), static_cast<double>(n_)};
    above_all<kRungs>(kLadder, ladder_);
    return in_falling_order(top_k, top_p, min_p, uniform);
  }

 private:
  struct Above {  // what weighs at least so much
    double sum, count;
  };
  struct Found {  // an element of the falling order, and the sum and number of all up to it, itself included
    int id;
    double sum, count;
  };

  struct Band {  // weights in [low, high), by their bits
    uint32_t low, high;
    Above over;       // what lies above
    double from_low;  // how many weigh at least `low`
  };

  static constexpr int kThresholds = 3;
  // Where every search on a row begins: 2^-12, 2^-9, 2^-7, 2^-5, 2^-4, 2^-3, 2^-1 of the highest weight.
  static constexpr int kRungs = 7;
  static constexpr uint32_t kLadder[kRungs] = {115u << 23, 118u << 23, 120u << 23, 122u << 23, 123u << 23, 124u << 23, 126u << 23};
  static constexpr int kFew = 96;
  static constexpr uint32_t kNothing = 0x007fffff;  // below every normal number: stands for weight 0

  static float from_bits(uint32_t bits) {
    if (bits <= kNothing) return 0;
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
  }
  static uint32_t to_bits(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
  }

  float row_max() const {
    V a = splat(-__builtin_inff()), b = a, c = a, d = a;
    int i = 0;
    for (; i + 4 * W <= n_; i += 4 * W) {
      a = max(a, load(logits_ + i));
      b = max(b, load(logits_ + i + W));
      c = max(c, load(logits_ + i + 2 * W));
      d = max(d, load(logits_ + i + 3 * W));
    }
    float top = highest(max(max(a, b), max(c, d)));
    for (; i < n_; ++i) top = most(top, logits_[i]);
    return top;
  }

  int first_best() const {
    const float top = row_max();
    for (int i = 0; i < n_; ++i)
      if (logits_[i] == top) return i;
    return 0;
  }

  // Weights of one block, zeros behind the row's end; returns their sum.
  template <bool Tops> float weigh(int block, float* out) {
    alignas(64) float padded[kSampleBlock];
    const float* from = logits_ + static_cast<int64_t>(block) * kSampleBlock;
    const int valid = n_ - block * kSampleBlock;
    if (valid < kSampleBlock) {
      for (int i = 0; i < kSampleBlock; ++i) padded[i] = i < valid ? from[i] : -__builtin_inff();
      from = padded;
    }
    const V top = splat(max_), scale = splat(scale_);
    V total[4] = {zero(), zero(), zero(), zero()}, highest_of = zero();
    for (int i = 0; i < kSampleBlock; i += 4 * W)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const V w = exp2((load(from + i + j * W) - top) * scale);
        total[j] = total[j] + w;
        if (Tops) highest_of = max(highest_of, w);
        store(out + i + j * W, w);
      }
    if (Tops) tops_[block] = highest(highest_of);
    return sum((total[0] + total[1]) + (total[2] + total[3]));
  }

  template <bool Tops> double lay_down() {
    alignas(64) float scratch[kSampleBlock];
    double total = 0;
    for (int b = 0; b < blocks_; ++b)
      total += sums_[b] = weigh<Tops>(b, Tops ? weights_ + static_cast<int64_t>(b) * kSampleBlock : scratch);
    return total;
  }

  int in_order_of_ids(double uniform) {
    alignas(64) float w[kSampleBlock];
    const double target = uniform * lay_down<false>();
    double reached = 0;
    for (int b = 0; b < blocks_; ++b) {
      if (!(reached + sums_[b] > target)) {
        reached += sums_[b];
        continue;
      }
      weigh<false>(b, w);
      int last = 0;
      for (int i = 0; i < kSampleBlock; ++i) {
        if (!(w[i] > 0)) continue;
        last = i;
        if ((reached += w[i]) > target) break;
      }
      return b * kSampleBlock + last;  // rounding can leave the target just behind the block's end
    }
    for (int b = blocks_ - 1; b >= 0; --b) {
      weigh<false>(b, w);
      for (int i = kSampleBlock - 1; i >= 0; --i)
        if (w[i] > 0) return b * kSampleBlock + i;
    }
    return 0;
  }

  int in_falling_order(int top_k, double top_p, double min_p, double uniform) {
    double limit = n_, total = everything_.sum;
    if (min_p > 0) {
      const Above likely = above(to_bits(static_cast<float>(min_p)));
      limit = most(1.0, likely.count);
      total = likely.sum;
    }
    if (top_k > 0 && top_k < limit) {
      const Found last = number(top_k);
      limit = last.count;
      total = last.sum;
    }
    if (top_p < 1) {
      const Found last = passing(top_p * total, true);
      if (last.count < limit) {
        limit = last.count;
        total = last.sum;
      }
    }
    const Found drawn = passing(uniform * total, false);
    return drawn.count > limit ? number(limit).id : drawn.id;  // rounding can put the target just behind the end
  }

  // The first element at which the running sum reaches (or, unless `equal_will_do`, passes) the target.
  Found passing(double target, bool equal_will_do) {
    const Found found = seek(target, equal_will_do, [](const Above& a) { return a.sum; });
    return found.id >= 0 ? found : number(most(1.0, above(kNothing + 1).count));
  }
  Found number(double k) {
    const Found found = seek(k, true, [](const Above& a) { return a.count; });
    return found.id >= 0 ? found : Found{0, 1, 1};  // only where logits were NaN
  }

  template <class Measure> Found seek(double target, bool equal_will_do, Measure measure) {
    auto there = [&](const Above& a) { return equal_will_do ? measure(a) >= target : measure(a) > target; };
    Band band{kNothing, 0x3f800001, Above{0, 0}, static_cast<double>(n_)};
    narrow<kRungs>(band, kLadder, ladder_, there);
    while (band.high - band.low > 1 && band.from_low - band.over.count > kFew) {
      uint32_t bits[kThresholds];
      const uint64_t width = band.high - band.low;
      const int parts = static_cast<int>(least<uint64_t>(width, kThresholds + 1));
      for (int i = 0; i < kThresholds; ++i) bits[i] = band.low + static_cast<uint32_t>(width * least(i + 1, parts - 1) / parts);
      Above at[kThresholds];
      above_all<kThresholds>(bits, at);
      narrow<kThresholds>(band, bits, at, there);
    }
    return walk(band, there);
  }

  template <int K, class There> static void narrow(Band& band, const uint32_t* bits, const Above* at, There there) {
    for (int i = K - 1; i >= 0; --i) {
      if (there(at[i])) {
        band.low = bits[i];
        band.from_low = at[i].count;
        return;
      }
      band.high = bits[i];
      band.over = at[i];
    }
  }

  template <class There> Found walk(const Band& band, There there) {
    const int count = collect(band.low, band.high);
    if (band.high - band.low > 1) sort_falling(count);
    Above reached = band.over;
    for (int i = 0; i < count; ++i) {
      const int id = static_cast<int>(~static_cast<uint32_t>(keys_[i]));
      reached.sum += weights_[id];
      reached.count += 1;
      if (there(reached)) return {id, reached.sum, reached.count};
    }
    return {-1, reached.sum, reached.count};
  }

  // Keys of the elements whose weights are in [low, high), by id: weight, then ~id, so that the larger key comes first.
  int collect(uint32_t low, uint32_t high) {
    const V least_weight = splat(from_bits(low)), end = splat(from_bits(high));
    int count = 0;
    for (int b = 0; b < blocks_; ++b) {
      if (tops_[b] < from_bits(low)) continue;
      const int first = b * kSampleBlock, stop = least(first + kSampleBlock, n_);
      for (int i = first; i < stop; i += W) {
        const V w = load(weights_ + i);
        for (unsigned in = at_least(w, least_weight) & ~at_least(w, end); in; in &= in - 1) {
          const int id = i + __builtin_ctz(in);
          if (id < n_) keys_[count++] = static_cast<uint64_t>(to_bits(weights_[id])) << 32 | ~static_cast<uint32_t>(id);
        }
      }
    }
    return count;
  }

  void sort_falling(int count) {  // few, and of the library's sorts none may be instantiated here (common.h)
    for (int i = 1; i < count; ++i) {
      const uint64_t key = keys_[i];
      int j = i;
      for (; j > 0 && keys_[j - 1] < key; --j) keys_[j] = keys_[j - 1];
      keys_[j] = key;
    }
  }

  Above above(uint32_t bits) const {
    Above at;
    above_all<1>(&bits, &at);
    return at;
  }

  // For rising thresholds. Sums run in three levels, of a block, of sixteen blocks and of all: single precision loses nothing then.
  template <int K> void above_all(const uint32_t* bits, Above* at) const {
    V threshold[K], sums[K], counts[K];
    const V one = splat(1.0f);
    for (int k = 0; k < K; ++k) {
      threshold[k] = splat(from_bits(bits[k]));
      counts[k] = zero();
      at[k] = Above{0, 0};
    }
    const float lowest = from_bits(bits[0]);
    for (int first = 0; first < blocks_; first += 16) {
      for (int k = 0; k < K; ++k) sums[k] = zero();
      for (int b = first; b < least(first + 16, blocks_); ++b) {
        if (tops_[b] < lowest) continue;
        V mine[K];
#pragma GCC unroll 7
        for (int k = 0; k < K; ++k) mine[k] = zero();
        const float* w = weights_ + static_cast<int64_t>(b) * kSampleBlock;
        for (int i = 0; i < kSampleBlock; i += W) {
          const V x = load(w + i);
#pragma GCC unroll 7
          for (int k = 0; k < K; ++k) {
            mine[k] = add_if_at_least(mine[k], x, threshold[k], x);
            counts[k] = add_if_at_least(counts[k], x, threshold[k], one);
          }
        }
        for (int k = 0; k < K; ++k) sums[k] = sums[k] + mine[k];
      }
      for (int k = 0; k < K; ++k) at[k].sum += sum(sums[k]);
    }
    for (int k = 0; k < K; ++k) at[k].count = sum(counts[k]);
    for (int k = 0; k < K; ++k)
      if (bits[k] <= kNothing) at[k].count = n_;  // without the padding
  }

  const int n_, blocks_;
  const float* logits_ = nullptr;
  float max_ = 0, scale_ = 1;
  Above everything_, ladder_[kRungs];
  uint64_t* keys_;
  double* sums_;
  float *weights_, *tops_;
};

static void sample(const SampleArgs& a, Team* team, int thread) {
  RowSampler sampler(a.vocab, a.scratch + thread * sample_scratch_bytes(a.vocab));
  const Worker worker(team, thread);
  auto items = worker.items(a.num_rows);
  for (int i; (i = items.next()) >= 0;)
    a.chosen[i] = sampler.choose(a.rows[i], a.temperature[i], a.top_k[i], a.top_p[i], a.min_p[i], a.uniform[i]);
}

}  // namespace TANDEM_VARIANT
}  // namespace tandem
