#include "threads.h"

#include <climits>
#include <ctime>
#include <new>
#include <thread>
#include <vector>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tandem {
namespace {

void futex_wait(uint32_t* word, uint32_t value) {
#ifdef __linux__
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) std::this_thread::yield();
#endif
}

void futex_wake_all(uint32_t* word) {
#ifdef __linux__
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

}  // namespace

struct Team::Threads { std::vector<std::thread> list; };

Team::Team(int size, int spin_us, int rest_us)
    : size_(size), spin_ns_(spin_us * INT64_C(1000)), rest_ns_(rest_us * INT64_C(1000)), claims_(new Claim[3 * size]()), threads_(new Threads) {
  for (int i = 1; i < size; ++i) threads_->list.emplace_back([this, i] { serve(i); });
}

Team::~Team() {
  __atomic_store_n(&stop_, 1u, __ATOMIC_RELEASE);
  release(&generation_, &generation_sleepers_);
  for (auto& thread : threads_->list) thread.join();
  delete threads_;
  delete[] claims_;
}

void Team::run(void (*work)(void*, int), void* context) {
  work_ = work;
  context_ = context;
  for (int i = 0; i < 3 * size_; ++i) claims_[i].next = 0;
  release(&generation_, &generation_sleepers_);
  work(context, 0);
  barrier();
}

void Team::serve(int thread) {
  for (uint32_t seen = 0;;) {
    wait_while(&generation_, seen, &generation_sleepers_, rest_ns_);
    if (__atomic_load_n(&stop_, __ATOMIC_ACQUIRE)) return;
    ++seen;
    work_(context_, thread);
    barrier();
  }
}

void Team::barrier() {
  if (size_ == 1) return;
  const uint32_t epoch = __atomic_load_n(&epoch_, __ATOMIC_RELAXED);  // can't move on before we have arrived
  if (__atomic_add_fetch(&arrived_, 1u, __ATOMIC_ACQ_REL) == static_cast<uint32_t>(size_)) {
    __atomic_store_n(&arrived_, 0u, __ATOMIC_RELAXED);
    release(&epoch_, &epoch_sleepers_);
  } else {
    wait_while(&epoch_, epoch, &epoch_sleepers_, spin_ns_);
  }
}

void Team::wait_while(uint32_t* word, uint32_t value, uint32_t* sleepers, int64_t spin_ns) {
  const int64_t until = now_ns() + spin_ns;
  do {
    for (int i = 0; i < 32; ++i) {
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return;
      relax();
    }
  } while (now_ns() < until);
  // The sleeper announces itself before it looks again, the waker writes before it looks for sleepers: one of them sees the other.
  __atomic_add_fetch(sleepers, 1u, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) futex_wait(word, value);
  __atomic_sub_fetch(sleepers, 1u, __ATOMIC_SEQ_CST);
}

void Team::release(uint32_t* word, uint32_t* sleepers) {
  __atomic_add_fetch(word, 1u, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(sleepers, __ATOMIC_SEQ_CST)) futex_wake_all(word);
}

}  // namespace tandem
