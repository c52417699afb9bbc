// One team of threads that enters a step once, meets at cheap barriers inside it, and sleeps outside.
//
// Waiting spins for a bounded few microseconds, then parks on a futex: an idle engine burns no CPU, and where others
// compute on the same cores a waiter gives its core away instead of fighting for it.
#pragma once
#include "common.h"

namespace tandem {

struct alignas(64) Claim { uint32_t next; };

class Team {
 public:
  Team(int size, int spin_us, int rest_us);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  TANDEM_INLINE int size() const { return size_; }
  // Calls work(context, thread) on every thread, the caller being thread 0; returns when all are done.
  void run(void (*work)(void*, int), void* context);
  void barrier();
  TANDEM_INLINE Claim* claims(unsigned phase) { return claims_ + (phase % 3) * size_; }

 private:
  struct Threads;
  void serve(int thread);
  static void wait_while(uint32_t* word, uint32_t value, uint32_t* sleepers, int64_t spin_ns);
  static void release(uint32_t* word, uint32_t* sleepers);

  const int size_;
  const int64_t spin_ns_, rest_ns_;   // awake at a barrier, and between two runs
  Claim* claims_;
  Threads* threads_;
  void (*work_)(void*, int) = nullptr;
  void* context_ = nullptr;
  alignas(64) uint32_t arrived_ = 0;
  alignas(64) uint32_t epoch_ = 0;
  uint32_t epoch_sleepers_ = 0;
  alignas(64) uint32_t generation_ = 0;
  uint32_t generation_sleepers_ = 0;
  uint32_t stop_ = 0;
};

}  // namespace tandem
