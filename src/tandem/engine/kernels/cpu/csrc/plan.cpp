// Before a step: is it possible, and how is its attention divided?
#include <algorithm>

#include "decoder.h"

namespace tandem {
namespace {

int window_of_group(const Decoder& d, int group) {  // the longest reach of its layers; 0: all
  int window = 0;
  for (int i = 0; i < d.config.num_layers; ++i) {
    if (d.layers[i].group != group) continue;
    if (d.layers[i].window == 0) return 0;
    window = std::max(window, d.layers[i].window);
  }
  return window;
}

const char* check_blocks(const Decoder& d, const StepArgs& a, int group) {
  const Config& c = d.config;
  const int window = window_of_group(d, group);
  for (int s = 0; s < a.num_sequences; ++s) {
    const int context = a.context_len[s], first = context - (a.query_start[s + 1] - a.query_start[s]);
    const int begin = window ? std::max(0, first + 1 - window) : 0, end = (context - 1) / c.block_size;
    if (end >= a.max_blocks) return "a context is longer than its block table";
    for (int b = begin / c.block_size; b <= end; ++b) {
      const int32_t id = a.block_tables[group][static_cast<int64_t>(s) * a.max_blocks + b];
      if (id < 0 || id >= c.num_blocks) return "a block table names a block that doesn't exist";
    }
  }
  const int64_t slots = static_cast<int64_t>(c.num_blocks) * c.block_size;
  for (int t = 0; t < a.num_tokens; ++t)
    if (a.slot_mapping[group][t] < 0 || a.slot_mapping[group][t] >= slots) return "a slot lies outside the pool";
  return nullptr;
}

}  // namespace

const char* check_step(const Decoder& d, const StepArgs& a) {
  const Config& c = d.config;
  if (a.num_tokens < 1 || a.num_tokens > c.max_tokens) return "the number of tokens is not between 1 and max_tokens";
  if (a.num_samples < 0 || a.num_samples > a.num_tokens) return "more samples than tokens";
  if (a.query_start[0] != 0 || a.query_start[a.num_sequences] != a.num_tokens) return "query_start doesn't span the tokens";
  for (int s = 0; s < a.num_sequences; ++s) {
    const int queries = a.query_start[s + 1] - a.query_start[s];
    if (queries < 1) return "a sequence without tokens";
    if (a.context_len[s] < queries || a.context_len[s] > c.max_context) return "a context is shorter than its queries or too long";
  }
  for (int t = 0; t < a.num_tokens; ++t) {
    if (a.token_ids[t] < 0 || a.token_ids[t] >= c.vocab) return "a token id is not in the vocabulary";
    if (a.positions[t] < 0 || a.positions[t] >= c.max_context) return "a position is too high";
  }
  for (int i = 0; i < a.num_samples; ++i)
    if (a.sample_rows[i] < 0 || a.sample_rows[i] >= a.num_tokens) return "a sampled row is not a token's";
  for (int g = 0; g < c.num_groups; ++g)
    if (const char* wrong = check_blocks(d, a, g)) return wrong;
  return nullptr;
}

// Tiles of queries by KV head; of few and long decodes, chunks. Longest first, dealt to the threads in turn.
void plan_attention(Decoder& d, const StepArgs& a) {
  const Config& c = d.config;
  d.decode_only = a.num_sequences == a.num_tokens;
  const int tile = std::max(1, kMaxTileRows / d.group_size());
  const bool split = d.decode_only && a.num_sequences * c.num_kv_heads < 4 * c.threads && c.threads > 1;
  AttentionItem* items = d.items + d.max_items;
  int n = 0, num_splits = 0, num_partials = 0;
  for (int s = 0; s < a.num_sequences; ++s) {
    const int queries = a.query_start[s + 1] - a.query_start[s], context = a.context_len[s];
    const int chunks = (context - 1) / kKvChunk + 1;
    for (int h = 0; h < c.num_kv_heads; ++h) {
      if (split && chunks > 1) {
        d.splits[num_splits] = Split{static_cast<uint32_t>(chunks), chunks, num_partials};
        num_partials += chunks;
        for (int k = 0; k < chunks; ++k)
          items[n++] = AttentionItem{s, h, 0, 1, k, num_splits, std::min(kKvChunk, context - k * kKvChunk)};
        ++num_splits;
        continue;
      }
      for (int q = 0; q < queries; q += tile) {
        const int tokens = std::min(tile, queries - q);
        items[n++] = AttentionItem{s, h, q, tokens, -1, 0, static_cast<int64_t>(context - queries + q + tokens) * (tokens + 1)};
      }
    }
  }
  d.num_items = n;
  std::sort(items, items + n, [](const AttentionItem& x, const AttentionItem& y) {
    return x.cost != y.cost ? x.cost > y.cost : x.sequence != y.sequence ? x.sequence < y.sequence : x.kv_head < y.kv_head;
  });
  // Thread t's range of the list begins at n * t / threads (worker.h); deal round by round, as long as a range has room.
  int taken = 0;
  for (int round = 0; taken < n; ++round)
    for (int t = 0; t < c.threads; ++t) {
      const int64_t low = static_cast<int64_t>(n) * t / c.threads, high = static_cast<int64_t>(n) * (t + 1) / c.threads;
      if (low + round < high) d.items[low + round] = items[taken++];
    }
}

}  // namespace tandem
