// How a thread walks through the phases of a step.
#pragma once
#include "threads.h"

namespace tandem {
namespace TANDEM_VARIANT {

// A thread's place in a step: which phase it is in, and how it gets work there.
//
// Every phase divides its items evenly by thread, each range on a cache line of its own; who is through takes from the others.
// So the common case costs one uncontended atomic, and a core that someone else slows down doesn't hold up the rest.
class Worker {
 public:
  Worker(Team* team, int thread) : thread(thread), team_(team) {}

  // Ends a phase: returns when every thread has ended it. The claims reset here were last used in the phase before,
  // which everybody has left, and will be used in the phase after the next.
  void sync() {
    team_->claims(phase_ + 2)[thread].next = 0;
    team_->barrier();
    ++phase_;
  }

  class Items {
   public:
    Items(const Worker& w, int count) : w_(w), claims_(w.team_->claims(w.phase_)), count_(count) {}
    // The next item of this thread, or of one that lags behind; -1 when all are taken.
    int next() {
      const int team = w_.team_->size();
      for (; offset_ < team; ++offset_) {
        const int victim = (w_.thread + offset_) % team;
        const int low = first(victim, team), high = first(victim + 1, team);
        if (low == high) continue;
        const int i = low + static_cast<int>(__atomic_fetch_add(&claims_[victim].next, 1u, __ATOMIC_RELAXED));
        if (i < high) return i;
      }
      return -1;
    }

   private:
    int first(int thread, int team) const { return static_cast<int>(static_cast<int64_t>(count_) * thread / team); }
    const Worker& w_;
    Claim* claims_;
    int count_;
    int offset_ = 0;
  };

  Items items(int count) const { return Items(*this, count); }
  int team_size() const { return team_->size(); }
  const int thread;

 private:
  friend class Items;
  Team* team_;
  unsigned phase_ = 0;
};

}  // namespace TANDEM_VARIANT
}  // namespace tandem
