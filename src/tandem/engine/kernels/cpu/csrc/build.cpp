// Making a decoder: where everything lies, and filling it from a checkpoint.
#include <cstring>
#include <new>

#include "decoder.h"

namespace tandem {
namespace {

// Hands out aligned pieces of a mapping. Run over a null base first, it tells the size.
class Arena {
 public:
  explicit Arena(char* base) : base_(base) {}
  template <class T> T* take(int64_t count, int64_t align = 64) {
    size_ = round_up(size_, align);
    char* p = base_ ? base_ + size_ : nullptr;
    size_ += count * static_cast<int64_t>(sizeof(T));
    return reinterpret_cast<T*>(p);
  }
  int64_t size() const { return size_; }

 private:
  char* base_;
  int64_t size_ = 0;
};

constexpr int kSpareRows = 32;      // that AMX tiles may read beyond the last
constexpr int64_t kPage = 4096;

void place(Arena& arena, Matrix& m, int n, int k, int n_multiple, DType dtype) {
  m.n = static_cast<int>(round_up(n, n_multiple));
  m.k = static_cast<int>(round_up(k, kPanel));
  m.panel_bytes = packed_panel_bytes(dtype, m.k);
  m.data = arena.take<char>(m.panels() * m.panel_bytes, kPage);
}

void place_weights(Decoder& d, Arena& arena) {
  const Config& c = d.config;
  const DType dtype = static_cast<DType>(c.weight_dtype);
  auto vector = [&](int n) { return arena.take<float>(round_up(n, kPanel)); };
  for (int i = 0; i < c.num_layers; ++i) {
    Layer& l = d.layers[i];
    l.input_norm = vector(c.hidden);
    l.mlp_norm = vector(c.hidden);
    l.post_attention_norm = c.post_norms ? vector(c.hidden) : nullptr;
    l.post_mlp_norm = c.post_norms ? vector(c.hidden) : nullptr;
    l.q_norm = c.qk_norm ? vector(c.head_dim) : nullptr;
    l.k_norm = c.qk_norm ? vector(c.head_dim) : nullptr;
    l.qkv_bias = c.qkv_bias ? vector(d.qkv_stride) : nullptr;
  }
  d.final_norm = vector(c.hidden);
  float* rope[2];
  for (int i = 0; i < 2; ++i) rope[i] = c.rope[i] ? arena.take<float>(static_cast<int64_t>(c.max_context) * c.head_dim) : nullptr;
  for (int i = 0; i < c.num_layers; ++i) {
    Layer& l = d.layers[i];
    l.rope = rope[c.rope_index[i]];
    place(arena, l.qkv, d.qkv_stride, c.hidden, kPanel, dtype);
    place(arena, l.o, c.hidden, c.num_heads * c.head_dim, kPanel, dtype);
    place(arena, l.gate_up, 2 * static_cast<int>(round_up(c.intermediate, kHalf)), c.hidden, kPanel, dtype);
    place(arena, l.down, c.hidden, c.intermediate, kPanel, dtype);
  }
  place(arena, d.head, c.vocab, c.hidden, kPanel, dtype);
  const int64_t bytes = dtype == DType::f32 ? 4 : 2;
  if (!c.tied) d.embedding.data = arena.take<char>(static_cast<int64_t>(c.vocab) * c.hidden * bytes, kPage);
  d.embedding.n = c.vocab;
  d.embedding.k = c.hidden;
}

void place_kv(Decoder& d) {
  const Config& c = d.config;
  KvLayout& l = d.kv;
  const DType dtype = static_cast<DType>(c.kv_dtype);
  l.block_size = c.block_size;
  l.head_dim = c.head_dim;
  l.padded_dim = static_cast<int>(round_up(c.head_dim, kPanel));
  l.num_kv_heads = c.num_kv_heads;
  l.element_bytes = dtype == DType::f32 ? 4 : dtype == DType::bf16 ? 2 : 1;
  l.pack = dtype == DType::f32 ? 1 : 2;
  l.grouped = c.block_size >= kHalf;
  l.part_bytes = static_cast<int64_t>(l.block_size) * l.padded_dim * l.element_bytes;
  l.head_bytes = round_up(2 * l.part_bytes + (dtype == DType::i8 ? 2 * 4 * l.block_size : 0), 64);
  l.layer_bytes = l.head_bytes * l.num_kv_heads;
  l.block_bytes = l.layer_bytes * c.num_pools;
}

int64_t attention_scratch_bytes(int group, int dim) {  // as attention.h carves it, for the widest types
  const int64_t rows = (group > kMaxTileRows ? group : kMaxTileRows) + kSpareRows;
  return 4 * (3 * rows * dim + 2 * rows * kKvTile + 7 * rows + 8 * kHalf * static_cast<int64_t>(dim) + 2 * kKvTile) + 16 * 64;
}

void place_scratch(Decoder& d, Arena& arena) {
  const Config& c = d.config;
  const int64_t tokens = c.max_tokens, rows = tokens + kSpareRows, chunks = c.max_context / kKvChunk + 1;
  d.max_splits = 4 * c.threads;
  d.max_partials = d.max_splits * chunks;
  d.max_items = tokens * c.num_kv_heads + d.max_partials;
  d.x = arena.take<float>(tokens * d.hidden_stride);
  d.y = arena.take<float>(tokens * d.hidden_stride);
  d.qkv = arena.take<float>(tokens * d.qkv_stride);
  d.normed = arena.take<float>(rows * d.act_stride);
  d.query = arena.take<float>(static_cast<int64_t>(c.num_kv_heads) * rows * d.group_size() * d.kv.padded_dim);
  d.attended = arena.take<float>(rows * d.attention_stride);
  d.activated = arena.take<float>(rows * d.mlp_stride);
  d.best_value = arena.take<float>(c.threads * tokens);
  d.best_index = arena.take<int32_t>(c.threads * tokens);
  d.items = arena.take<AttentionItem>(2 * d.max_items);   // the second half is room to sort in
  d.splits = arena.take<Split>(d.max_splits);
  d.partials = arena.take<float>(d.max_partials * d.group_size() * (d.kv.padded_dim + 2));
  d.zeros = arena.take<char>(static_cast<int64_t>(kHalf) * d.kv.padded_dim * 4);
  const int64_t attention = attention_scratch_bytes(d.group_size(), d.kv.padded_dim);
  const int64_t normed = (kRedundantRows + kSpareRows) * static_cast<int64_t>(d.act_stride) * 4;
  d.thread_scratch_bytes = round_up(most(attention, normed), kPage) + kPage;
  d.thread_scratch = arena.take<char>(c.threads * d.thread_scratch_bytes, kPage);
}

// A row's stride in the products' inputs. An odd number of cache lines, so that rows of a tile don't fall into one set.
int odd_lines(int64_t elements) {
  const int64_t lines = round_up(elements, kPanel) / kPanel;
  return static_cast<int>((lines | 1) * kPanel);
}

template <class Work> void on_team(Decoder& d, Work work) {
  d.team->run([](void* w, int thread) { (*static_cast<Work*>(w))(thread); }, &work);
}

// Which row of which source a column of a packed matrix is; null: padding.
const char* source_row(const Decoder& d, int role, int column, const char* const* sources, int64_t row_bytes) {
  const Config& c = d.config;
  switch (role) {
    case 0: {  // q, k, v; heads padded to whole panels
      const int dim = d.kv.padded_dim, i = column % dim;
      int head = column / dim;
      if (i >= c.head_dim) return nullptr;
      const int counts[3] = {c.num_heads, c.num_kv_heads, c.num_kv_heads};
      for (int s = 0; s < 3; head -= counts[s++])
        if (head < counts[s]) return sources[s] + (static_cast<int64_t>(head) * c.head_dim + i) * row_bytes;
      return nullptr;
    }
    case 2: {  // gate and up, sixteen by sixteen
      const int row = column / kPanel * kHalf + column % kHalf, s = column % kPanel / kHalf;
      return row < c.intermediate ? sources[s] + row * row_bytes : nullptr;
    }
    case 4: return column < c.vocab ? sources[0] + column * row_bytes : nullptr;
    default: return column < c.hidden ? sources[0] + column * row_bytes : nullptr;
  }
}

}  // namespace

Decoder* build_decoder(const Config& config, const char** error) {
  Decoder* d = new Decoder();
  d->config = config;
  const Config& c = d->config;
  d->variant = variant_at(c.variant);
  d->layers = new Layer[c.num_layers]();
  place_kv(*d);
  d->hidden_stride = static_cast<int>(round_up(c.hidden, kPanel));
  d->qkv_stride = (c.num_heads + 2 * c.num_kv_heads) * d->kv.padded_dim;
  d->act_stride = odd_lines(c.hidden);
  d->attention_stride = odd_lines(static_cast<int64_t>(c.num_heads) * c.head_dim);
  d->mlp_stride = odd_lines(c.intermediate);
  for (int i = 0; i < c.num_layers; ++i) {
    d->layers[i].window = c.windows[i];
    d->layers[i].group = c.groups[i];
    d->layers[i].pool = c.pools[i];
  }
  Arena weights(nullptr), scratch(nullptr);
  place_weights(*d, weights);
  place_scratch(*d, scratch);
  if (!map_memory(weights.size(), true, &d->weights) || !map_memory(scratch.size(), true, &d->scratch) ||
      !map_memory(c.num_blocks * d->kv.block_bytes, true, &d->pool)) {
    free_decoder(d);
    *error = "the system refuses the memory";
    return nullptr;
  }
  Arena placed(d->weights.data), in_scratch(d->scratch.data);
  place_weights(*d, placed);
  place_scratch(*d, in_scratch);
  for (int i = 0; i < c.num_layers; ++i)
    if (d->layers[i].rope)
      std::memcpy(const_cast<float*>(d->layers[i].rope), c.rope[c.rope_index[i]], sizeof(float) * c.max_context * c.head_dim);
  d->team = new Team(c.threads, c.spin_us);
  return d;
}

void free_decoder(Decoder* d) {
  delete d->team;
  unmap_memory(&d->weights);
  unmap_memory(&d->scratch);
  unmap_memory(&d->pool);
  delete[] d->layers;
  delete d;
}

// Roles: 0 q, k, v · 1 output · 2 gate, up · 3 down · 4 LM head · 5 embedding.
void load_matrix(Decoder& d, int role, int layer, const void* const* sources, DType from) {
  const Config& c = d.config;
  Layer& l = d.layers[layer];
  const DType to = static_cast<DType>(c.weight_dtype);
  const int64_t from_bytes = from == DType::f32 ? 4 : 2;
  if (role == 5) {
    const int64_t to_row = c.hidden * (to == DType::f32 ? 4 : 2), from_row = c.hidden * from_bytes;
    on_team(d, [&](int thread) {
      for (int64_t i = thread; i < c.vocab; i += c.threads)
        convert(static_cast<const char*>(sources[0]) + i * from_row, from, c.hidden, d.embedding.data + i * to_row, to);
    });
    return;
  }
  Matrix& m = role == 0 ? l.qkv : role == 1 ? l.o : role == 2 ? l.gate_up : role == 3 ? l.down : d.head;
  const int k = role == 1 ? c.num_heads * c.head_dim : role == 3 ? c.intermediate : c.hidden;
  on_team(d, [&](int thread) {
    for (int panel = thread; panel < m.panels(); panel += c.threads) {
      PackJob job{{}, k, m.k, from, to};
      for (int j = 0; j < kPanel; ++j)
        job.rows[j] = source_row(d, role, panel * kPanel + j, reinterpret_cast<const char* const*>(sources), k * from_bytes);
      pack_panel(job, m.data + panel * m.panel_bytes);
    }
  });
}

// Roles: 0 input norm · 1 norm before the MLP · 2 behind attention · 3 behind the MLP · 4 q norm · 5 k norm · 6 biases of q, k, v · 7 last norm.
void load_vector(Decoder& d, int role, int layer, const float* const* sources) {
  const Config& c = d.config;
  const Layer& l = d.layers[layer];
  const float* places[8] = {l.input_norm, l.mlp_norm, l.post_attention_norm, l.post_mlp_norm, l.q_norm, l.k_norm, l.qkv_bias, d.final_norm};
  float* to = const_cast<float*>(places[role]);
  if (role != 6) {
    std::memcpy(to, sources[0], sizeof(float) * (role == 4 || role == 5 ? c.head_dim : c.hidden));
    return;
  }
  const int counts[3] = {c.num_heads, c.num_kv_heads, c.num_kv_heads};
  for (int s = 0; s < 3; ++s)
    for (int h = 0; h < counts[s]; ++h, to += d.kv.padded_dim) std::memcpy(to, sources[s] + h * c.head_dim, sizeof(float) * c.head_dim);
}

}  // namespace tandem
