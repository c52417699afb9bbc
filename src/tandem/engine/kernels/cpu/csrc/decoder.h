// What a decoder consists of: its configuration, its packed weights, its KV pool and its scratch memory.
//
// The decoder owns all of it: three anonymous mappings, made once at construction and freed with it. A step allocates nothing.
#pragma once
#include "common.h"
#include "threads.h"

namespace tandem {

// The C ABI's configuration; decoder.py has the same fields in the same order.
struct Config {
  int32_t variant;
  int32_t threads, spin_us, rest_us;
  int32_t num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab;
  int32_t weight_dtype, kv_dtype;     // DType; weights of -1: given as packed matrices of a form each
  int32_t block_size, num_blocks, num_pools, num_groups, max_tokens, max_seqs, max_context;
  int32_t activation;                 // 0 SiLU, 1 GELU with tanh
  int32_t tied, qkv_bias, qk_norm, post_norms;
  float norm_eps, attention_scale, attention_soft_cap, logit_soft_cap, embedding_scale;  // a cap of 0: none
  const int32_t* windows;             // by layer; 0: all
  const int32_t* groups;              // by layer: whose block table it follows
  const int32_t* pools;               // by layer: its place in a block
  const int32_t* rope_index;          // by layer: which of the tables below
  const float* rope[2];               // [max_context][cos: head_dim/2, sin: head_dim/2]; copied
};

// A matrix of N outputs and K inputs as panels of 32 outputs, each of which a product walks front to back: one stream, each
// weight once a step. Padded with zeros to whole panels and, in K, to 32 (by-channel integers: to 64).
//   f32, bf16:  [K/kk][32][kk] with kk = Packing<T>::k
//   fp8:        32 scales in float, then [K][32]
//   int8, int4: by group, or once for all of K: 32 scales (half, or float), 32 offsets where there are any, then the codes:
//               int8 [K/4][32][4]; int4 [K/8][32][4], of a byte the low four bits for value i, the high ones for value i + 4
struct Matrix {
  const char* data = nullptr;
  int n = 0, k = 0;         // padded
  int64_t panel_bytes = 0;
  Form form = {};
  TANDEM_INLINE int panels() const { return n / kPanel; }
};
TANDEM_INLINE int64_t header_bytes(const Form& f) {
  if (f.kind == Kind::f32 || f.kind == Kind::bf16) return 0;
  return kPanel * (f.flags & kWideScales ? 4 : 2) * (f.flags & kOffset ? 2 : 1);
}

// Rows of inputs as a product takes them.
union Start {               // of a row's, or a group's, integer sum:
  int32_t whole;            // symmetric: where it starts
  float sum;                // with offsets: what the offset is multiplied with
};
struct Inputs {
  const void* rows = nullptr;         // float, bf16 or int8
  int64_t stride = 0;                 // between rows, in elements
  const float* scale = nullptr;       // int8 only: [row][groups]
  const Start* start = nullptr;
  int64_t groups = 0;
};

struct Layer {
  Matrix qkv, o, gate_up, down;
  const float *input_norm, *mlp_norm, *post_attention_norm, *post_mlp_norm, *q_norm, *k_norm, *qkv_bias;
  int window, group, pool;
  const float* rope;
};

// Where a block's keys and values lie. One block holds its positions for all layers of a group, so a pool that is touched
// lazily costs memory by blocks in use and a copy-on-write is one copy:
//   block -> pool (layer of the group) -> KV head -> keys, values, scales
// Block sizes from 16 on keep 16 positions in the order in which the products read them ("grouped"): keys [d/kk][16][kk],
// values [16/kk][d][kk]. Smaller blocks keep rows [position][d], gathered into that order when read. int8 keeps bf16's order.
struct KvLayout {
  int block_size, head_dim, padded_dim, num_kv_heads;
  int element_bytes, pack;
  bool grouped;
  int64_t part_bytes;      // keys (or values) of one head of a block
  int64_t head_bytes;      // keys, values, scales
  int64_t layer_bytes, block_bytes;
};

struct Mapping {
  char* data = nullptr;
  int64_t size = 0;
};

struct AttentionItem {
  int32_t sequence, kv_head, first_token, num_tokens;
  int32_t chunk;          // -1: all of them
  int32_t split;          // which entry of `splits`, if a chunk
  int64_t cost;
};

// A (sequence, KV head) whose chunks several threads share. Who finishes last merges them, always in the order of the chunks.
struct alignas(64) Split {
  uint32_t remaining;
  int32_t num_chunks, first_partial;
};

struct StepArgs {
  int32_t num_tokens, num_sequences, num_samples, max_blocks;
  const int32_t *token_ids, *positions, *query_start, *context_len, *sample_rows;
  const int32_t* const* block_tables;   // by group: [num_sequences][max_blocks]
  const int32_t* const* slot_mapping;   // by group: [num_tokens]
  float* logits;                        // [num_samples][vocab] or null
  int32_t* argmax;                      // [num_samples]
  float* hidden_out;                    // [num_samples][hidden] or null: behind the last norm
};

// Rows to choose a token from, each with its own settings: sampling_params.py says what they mean. A temperature of 0: the argmax.
struct SampleArgs {
  int32_t num_rows, vocab;
  const float* const* rows;             // each [vocab]
  const float* temperature;
  const int32_t* top_k;                 // 0: all
  const double *top_p, *min_p;
  const double* uniform;                // in [0, 1)
  int32_t* chosen;
  char* scratch;                        // the caller's: sample_scratch_bytes() for each thread, on a cache line
};
constexpr int kSampleBlockSize = 256;
static inline int64_t sample_scratch_bytes(int64_t vocab) {
  const int64_t blocks = (vocab + kSampleBlockSize - 1) / kSampleBlockSize;
  return blocks * kSampleBlockSize * (8 + 4) + round_up(blocks, 8) * 8 + round_up(blocks, 16) * 4;
}

struct Decoder {
  Config config;
  Team* team = nullptr;
  const struct Variant* variant = nullptr;
  Layer* layers = nullptr;
  Matrix head;
  Matrix embedding;        // data is null when tied: the head's
  const float* final_norm = nullptr;
  KvLayout kv;
  Mapping weights, pool, scratch;

  // Sizes of rows, padded to whole panels. In elements.
  int hidden_stride, qkv_stride, attention_stride, mlp_stride, act_stride;
  int code_stride, max_round_groups;   // of rounded inputs, for the widest product

  // Scratch of a step, shared by the threads.
  float* x;                // [max_tokens][hidden_stride] the residual stream
  float* y;                // [max_tokens][hidden_stride] outputs that a post norm waits for
  float* qkv;              // [max_tokens][qkv_stride]
  void* normed;            // [max_tokens][act_stride] inputs of the products: float, or bf16 where the products take that
  int8_t* codes;           // [max_tokens][code_stride] inputs of integer products
  float* code_scales;      // [max_tokens][max_round_groups]
  Start* code_starts;
  float* query_scales;     // [kv_heads][max_tokens * group]; of int8 keys only
  void* query;             // [kv_heads][max_tokens * group][padded_dim]
  // Twice each, for a network may have products of both kinds: what is padding in one would be values of the other.
  float* attended;         // [max_tokens][attention_stride]
  float* activated;        // [max_tokens][mlp_stride]
  bf16 *attended_bf16, *activated_bf16;
  float* best_value;       // [threads][max_tokens]
  int32_t* best_index;
  AttentionItem* items;
  int num_items;
  Split* splits;
  float* partials;         // [num_partials][group rows][max, sum, padded_dim values]
  int64_t max_items, max_splits, max_partials;
  bool decode_only;        // every sequence has one query: RoPE and the KV write ride with the attention

  // Scratch of one thread.
  char* thread_scratch;
  int64_t thread_scratch_bytes;
  const char* zeros;       // stands in for KV positions that aren't there

  TANDEM_INLINE int group_size() const { return config.num_heads / config.num_kv_heads; }
};

// One instruction set's kernels.
struct Variant {
  const char* name;
  bool bf16_products;      // inputs of bf16 products are rounded to bf16; otherwise they stay float
  void (*step)(Decoder&, const StepArgs&, int thread);
  // For tests: C[m][n] = A[m][k] W^T with W packed; and one layer's attention on given projections.
  void (*gemm)(const float* a, const Matrix& w, int m, float* c, char* scratch);
  void (*attention)(Decoder&, const StepArgs&, int layer, float* out, int thread);
  void (*sample)(const SampleArgs&, Team*, int thread);
  void (*enter)();         // by each thread, around a step: tile configuration
  void (*leave)();
};

// variants.cpp
constexpr int kNumVariants = 6;
const Variant* variant_at(int index);       // null: not compiled in
bool cpu_supports(int index);               // features.cpp

// pack.cpp
struct PackJob {
  const void* rows[kPanel];  // by column of the panel; null: zeros
  const float *scale[kPanel], *offset[kPanel];   // of integers and fp8: by group
  int k;
  DType from;                // of integers and fp8: u8, codes
};
void pack_panel(const PackJob& job, const Form& form, char* out);
int padded_inputs(const Form& form, int k);
int64_t packed_panel_bytes(const Form& form, int k);
void shape_matrix(Matrix& m, const Form& form, int n, int k);   // all but the data

// memory.cpp. False: the system hasn't that much.
bool map_memory(int64_t size, bool huge_pages, Mapping* out);
void unmap_memory(Mapping* m);

// build.cpp
Decoder* build_decoder(const Config& config, const char** error);
void free_decoder(Decoder* d);
void load_matrix(Decoder& d, int role, int layer, const void* const* sources, DType dtype);
void load_vector(Decoder& d, int role, int layer, const float* const* sources);
void place_matrix(Decoder& d, int role, int layer, const Form& form, const char* data);
void place_vector(Decoder& d, int role, int layer, const float* data);

// plan.cpp
const char* check_step(const Decoder& d, const StepArgs& args);   // null, or what is wrong
void plan_attention(Decoder& d, const StepArgs& args);

}  // namespace tandem
