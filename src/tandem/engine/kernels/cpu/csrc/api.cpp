// The C functions that decoder.py binds. No exception and no C++ type crosses them.
#include <cstring>
#include <initializer_list>
#include <new>

#include "decoder.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define TANDEM_API extern "C" __attribute__((visibility("default")))

namespace tandem {
namespace {

// Around a thread's part of a step: tiles configured, denormals flushed (they cost a hundred cycles each and mean nothing here).
class Entered {
 public:
  explicit Entered(const Variant& v) : variant_(v) {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
    _mm_setcsr(saved_ | 0x8040);
#endif
    variant_.enter();
  }
  ~Entered() {
    variant_.leave();
#if defined(__x86_64__)
    _mm_setcsr(saved_);
#endif
  }

 private:
  const Variant& variant_;
  unsigned saved_ = 0;
};

struct Job {
  Decoder* decoder;
  const StepArgs* args;
  int layer;
  float* out;
};

void step_on_thread(void* p, int thread) {
  const Job& job = *static_cast<Job*>(p);
  Entered entered(*job.decoder->variant);
  job.decoder->variant->step(*job.decoder, *job.args, thread);
}

void attention_on_thread(void* p, int thread) {
  const Job& job = *static_cast<Job*>(p);
  Entered entered(*job.decoder->variant);
  job.decoder->variant->attention(*job.decoder, *job.args, job.layer, job.out, thread);
}

struct SampleJob {
  const Variant* variant;
  const SampleArgs* args;
  Team* team;
};

void sample_on_thread(void* p, int thread) {
  const SampleJob& job = *static_cast<SampleJob*>(p);
  Entered entered(*job.variant);
  job.variant->sample(*job.args, job.team, thread);
}

}  // namespace
}  // namespace tandem

using namespace tandem;

TANDEM_API int32_t tandem_abi() { return 3; }
TANDEM_API const char* tandem_variant_name(int32_t i) {
  const Variant* v = variant_at(i);
  return v ? v->name : nullptr;
}
TANDEM_API int32_t tandem_cpu_supports(int32_t i) { return variant_at(i) && cpu_supports(i); }

TANDEM_API Decoder* tandem_decoder_create(const Config* config, const char** error) {
  try {
    return build_decoder(*config, error);
  } catch (const std::bad_alloc&) {
    *error = "out of memory";
  } catch (...) {
    *error = "the system refuses threads";
  }
  return nullptr;
}
TANDEM_API void tandem_decoder_free(Decoder* d) { free_decoder(d); }
TANDEM_API void tandem_decoder_sizes(const Decoder* d, int64_t* sizes) {
  sizes[0] = d->weights.size;
  sizes[1] = d->pool.size;
  sizes[2] = d->scratch.size;
  sizes[3] = d->kv.block_bytes;
}
// A matrix or a vector as `tandem_pack` and the image lay it out. Not copied: it must outlive the decoder.
TANDEM_API void tandem_decoder_place_matrix(Decoder* d, int32_t role, int32_t layer, const Form* form, const void* data) {
  place_matrix(*d, role, layer, *form, static_cast<const char*>(data));
}
TANDEM_API void tandem_decoder_place_vector(Decoder* d, int32_t role, int32_t layer, const float* data) {
  place_vector(*d, role, layer, data);
}
TANDEM_API void tandem_decoder_load_matrix(Decoder* d, int32_t role, int32_t layer, const void* const* sources, int32_t dtype) {
  load_matrix(*d, role, layer, sources, static_cast<DType>(dtype));
}
TANDEM_API void tandem_decoder_load_vector(Decoder* d, int32_t role, int32_t layer, const float* const* sources) {
  load_vector(*d, role, layer, sources);
}
TANDEM_API void tandem_decoder_copy_block(Decoder* d, int32_t from, int32_t to) {
  const int64_t n = d->kv.block_bytes;
  std::memcpy(d->pool.data + to * n, d->pool.data + from * n, n);
}

// Null, or what is wrong with the arguments; then nothing was done.
TANDEM_API const char* tandem_decoder_step(Decoder* d, const StepArgs* args) {
  if (const char* wrong = check_step(*d, *args)) return wrong;
  plan_attention(*d, *args);
  Job job{d, args, 0, nullptr};
  d->team->run(step_on_thread, &job);
  return nullptr;
}

// For tests: a layer's RoPE, KV write and attention on given projections qkv [tokens][heads + 2 kv heads][padded head].
TANDEM_API const char* tandem_decoder_attention(Decoder* d, const StepArgs* args, int32_t layer, const float* qkv, float* out) {
  if (const char* wrong = check_step(*d, *args)) return wrong;
  std::memcpy(d->qkv, qkv, sizeof(float) * args->num_tokens * d->qkv_stride);
  plan_attention(*d, *args);
  Job job{d, args, layer, out};
  d->team->run(attention_on_thread, &job);
  return nullptr;
}
// Chooses tokens; alone with a variant, or (where `d` isn't null) with the decoder's and on its threads.
TANDEM_API int32_t tandem_sample(Decoder* d, int32_t variant, const SampleArgs* args) {
  const Variant* v = d ? d->variant : variant_at(variant);
  if (!v) return 1;
  if (d && args->num_rows > 1) {
    SampleJob job{v, args, d->team};
    d->team->run(sample_on_thread, &job);
  } else {
    Team alone(1, 0, 0);
    SampleJob job{v, args, &alone};
    sample_on_thread(&job, 0);
  }
  return 0;
}
TANDEM_API int64_t tandem_sample_scratch_bytes(int64_t vocab) { return sample_scratch_bytes(vocab); }
TANDEM_API void tandem_decoder_strides(const Decoder* d, int32_t* strides) {
  strides[0] = d->qkv_stride;
  strides[1] = d->attention_stride;
  strides[2] = d->kv.padded_dim;
}

TANDEM_API int64_t tandem_panel_bytes(const Form* form, int32_t k) { return packed_panel_bytes(*form, k); }

// Packs n rows (a multiple of 32) of k values. `map`: which row of the source each is; -1: zeros.
TANDEM_API void tandem_pack(const Form* form, int32_t n, int32_t k, const int32_t* map, const void* rows, int32_t from, const float* scale,
                            const float* offset, char* out) {
  const DType type = static_cast<DType>(from);
  const int64_t row_bytes = static_cast<int64_t>(k) * (type == DType::f32 ? 4 : type == DType::u8 ? 1 : 2);
  const int64_t groups = form->group ? k / form->group : 1, panel_bytes = packed_panel_bytes(*form, k);
  for (int p = 0; p < n / kPanel; ++p) {
    PackJob job{{}, {}, {}, k, type};
    for (int j = 0; j < kPanel; ++j) {
      const int64_t row = map[p * kPanel + j];
      if (row < 0) continue;
      job.rows[j] = static_cast<const char*>(rows) + row * row_bytes;
      job.scale[j] = scale ? scale + row * groups : nullptr;
      job.offset[j] = offset ? offset + row * groups : nullptr;
    }
    pack_panel(job, *form, out + p * panel_bytes);
  }
}

// For tests and the probe: c [m][n] = a [m][k] times a packed matrix; n is a multiple of 32.
TANDEM_API int32_t tandem_gemm(int32_t variant, const Form* form, int32_t m, int32_t n, int32_t k, const float* a, const void* packed, float* c) {
  const Variant* v = variant_at(variant);
  if (!v) return 1;
  Matrix matrix;
  shape_matrix(matrix, *form, n, k);
  matrix.data = static_cast<const char*>(packed);
  const int64_t rows = m + 32, inputs = round_up(rows * matrix.k * 4, 64);
  Mapping memory;
  if (!map_memory(inputs + rows * matrix.k * 9 + 256, false, &memory)) return 1;
  float* padded = reinterpret_cast<float*>(memory.data);
  for (int r = 0; r < m; ++r) std::memcpy(padded + static_cast<int64_t>(r) * matrix.k, a + static_cast<int64_t>(r) * k, sizeof(float) * k);
  {
    Entered entered(*v);
    v->gemm(padded, matrix, m, c, memory.data + inputs);
  }
  unmap_memory(&memory);
  return 0;
}

// Runs a variant's instructions, whatever the processor claims, on small products and compares. Ends in SIGILL where they aren't
// there: for a process of its own.
TANDEM_API int32_t tandem_probe(int32_t variant) {
  constexpr int m = 5, n = 64, k = 48;
  static float a[m * k], w[n * k], c[m * n], scale[n];
  static uint8_t codes[n * k];
  static int32_t map[n];
  alignas(64) static char packed[4 * n * 64 + 1024];
  for (int i = 0; i < m * k; ++i) a[i] = i % k ? static_cast<float>(i % 7 - 3) : 127;   // rounds to itself
  for (int i = 0; i < n * k; ++i) w[i] = static_cast<float>(i % 5 - 2);
  for (int i = 0; i < n * k; ++i) codes[i] = static_cast<uint8_t>(w[i] + 128);
  for (int i = 0; i < n; ++i) {
    map[i] = i;
    scale[i] = 1;
  }
  const Form forms[] = {{Kind::f32, Activations::floats, 0, 0}, {Kind::bf16, Activations::floats, 0, 0}, {Kind::int8, Activations::int8_token, 0, 0}};
  for (const Form& form : forms) {
    const bool whole = is_integer(form);
    tandem_pack(&form, n, k, map, whole ? static_cast<const void*>(codes) : w, static_cast<int32_t>(whole ? DType::u8 : DType::f32), scale, nullptr, packed);
    if (tandem_gemm(variant, &form, m, n, k, a, packed, c)) return 2;
    for (int r = 0; r < m; ++r)
      for (int j = 0; j < n; ++j) {
        float want = 0;
        for (int i = 0; i < k; ++i) want += a[r * k + i] * w[j * k + i];
        if (c[r * n + j] != want) return 3;  // whole numbers: exact
      }
  }
  return 0;
}
