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

// Outputs and inputs of a matrix by its role: 0 q, k, v · 1 output · 2 gate, up · 3 down · 4 LM head · 5 embedding.
void sizes_of(const Decoder& d, int role, int* n, int* k) {
  const Config& c = d.config;
  *n = role == 0 ? d.qkv_stride : role == 2 ? 2 * static_cast<int>(round_up(c.intermediate, kHalf)) : role >= 4 ? c.vocab : c.hidden;
  *k = role == 1 ? c.num_heads * c.head_dim : role == 3 ? c.intermediate : c.hidden;
}
constexpr int kHead = 4, kEmbedding = 5;

Matrix& matrix_of(Decoder& d, int role, int layer) {
  if (role >= kHead) return role == kHead ? d.head : d.embedding;
  Layer& l = d.layers[layer];
  return role == 0 ? l.qkv : role == 1 ? l.o : role == 2 ? l.gate_up : l.down;
}

void place(Decoder& d, Arena& arena, int role, int layer) {
  int n, k;
  sizes_of(d, role, &n, &k);
  Matrix& m = matrix_of(d, role, layer);
  shape_matrix(m, Form{static_cast<Kind>(d.config.weight_dtype), Activations::floats, 0, 0}, n, k);
  m.data = arena.take<char>(m.panels() * m.panel_bytes, kPage);
}

void place_vectors(Decoder& d, Arena& arena) {
  const Config& c = d.config;
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
}

void place_weights(Decoder& d, Arena& arena) {
  const Config& c = d.config;
  float* rope[2];
  for (int i = 0; i < 2; ++i) rope[i] = c.rope[i] ? arena.take<float>(static_cast<int64_t>(c.max_context) * c.head_dim) : nullptr;
  for (int i = 0; i < c.num_layers; ++i) d.layers[i].rope = rope[c.rope_index[i]];
  if (c.weight_dtype < 0) return;
  place_vectors(d, arena);
  for (int i = 0; i < c.num_layers; ++i)
    for (int role = 0; role < kHead; ++role) place(d, arena, role, i);
  place(d, arena, kHead, 0);
  if (!c.tied) place(d, arena, kEmbedding, 0);
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
  return 4 * (3 * rows * dim + 2 * 32 * kKvTile + 5 * rows + 4 * 32 + 8 * kHalf * static_cast<int64_t>(dim) + 3 * kKvTile) + 18 * 64;
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
  d.codes = arena.take<int8_t>(rows * d.code_stride);
  d.code_scales = arena.take<float>(rows * d.max_round_groups);
  d.code_starts = arena.take<Start>(rows * d.max_round_groups);
  d.query_scales = arena.take<float>(static_cast<int64_t>(c.num_kv_heads) * tokens * d.group_size());
  d.query = arena.take<float>(static_cast<int64_t>(c.num_kv_heads) * rows * d.group_size() * d.kv.padded_dim);
  d.attended = arena.take<float>(rows * d.attention_stride);
  d.activated = arena.take<float>(rows * d.mlp_stride);
  d.attended_bf16 = arena.take<bf16>(rows * d.attention_stride);
  d.activated_bf16 = arena.take<bf16>(rows * d.mlp_stride);
  d.best_value = arena.take<float>(c.threads * tokens);
  d.best_index = arena.take<int32_t>(c.threads * tokens);
  d.items = arena.take<AttentionItem>(2 * d.max_items);   // the second half is room to sort in
  d.splits = arena.take<Split>(d.max_splits);
  d.partials = arena.take<float>(d.max_partials * d.group_size() * (d.kv.padded_dim + 2));
  d.zeros = arena.take<char>(static_cast<int64_t>(kHalf) * d.kv.padded_dim * 4);
  const int64_t attention = attention_scratch_bytes(d.group_size(), d.kv.padded_dim);
  const int64_t own = kRedundantRows + kSpareRows;   // as step.h carves it
  const int64_t normed = own * (static_cast<int64_t>(d.act_stride) * 4 + d.code_stride + 8 * d.max_round_groups) + 4 * d.act_stride + 4 * 64;
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
    case kHead: case kEmbedding: return column < c.vocab ? sources[0] + column * row_bytes : nullptr;
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
  const int widest = most(c.hidden, most(c.intermediate, c.num_heads * c.head_dim));
  d->code_stride = static_cast<int>((round_up(widest, kDeep) / kDeep | 1) * kDeep);
  d->max_round_groups = d->code_stride / kRoundGroup;
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
  d->team = new Team(c.threads, c.spin_us, c.rest_us);
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

void load_matrix(Decoder& d, int role, int layer, const void* const* sources, DType from) {
  const Config& c = d.config;
  const int64_t from_bytes = from == DType::f32 ? 4 : 2;
  Matrix& m = matrix_of(d, role, layer);
  int n, k;
  sizes_of(d, role, &n, &k);
  on_team(d, [&](int thread) {
    for (int panel = thread; panel < m.panels(); panel += c.threads) {
      PackJob job{{}, {}, {}, k, from};
      for (int j = 0; j < kPanel; ++j)
        job.rows[j] = source_row(d, role, panel * kPanel + j, reinterpret_cast<const char* const*>(sources), k * from_bytes);
      pack_panel(job, m.form, const_cast<char*>(m.data) + panel * m.panel_bytes);
    }
  });
}

void place_matrix(Decoder& d, int role, int layer, const Form& form, const char* data) {
  Matrix& m = matrix_of(d, role, layer);
  int n, k;
  sizes_of(d, role, &n, &k);
  shape_matrix(m, form, n, k);
  m.data = data;
}

void place_vector(Decoder& d, int role, int layer, const float* data) {
  Layer& l = d.layers[layer];
  const float** places[8] = {&l.input_norm, &l.mlp_norm, &l.post_attention_norm, &l.post_mlp_norm, &l.q_norm, &l.k_norm, &l.qkv_bias, &d.final_norm};
  *places[role] = data;
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
