#include <sys/mman.h>

#include "decoder.h"

namespace tandem {
namespace {
constexpr int64_t kHugePage = INT64_C(2) << 20;
}

// Zeroed, touched lazily, in pages of 2 MiB where the system gives them: a step walks hundreds of megabytes, which small pages
// slow down by a tenth.
bool map_memory(int64_t size, bool huge_pages, Mapping* out) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  const int64_t padded = round_up(size, kHugePage) + kHugePage;
  void* p = mmap(nullptr, padded, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (p == MAP_FAILED) return false;
  // Cut to a multiple of the huge page at both ends.
  char* start = static_cast<char*>(p);
  char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(start), kHugePage));
  if (aligned != start) munmap(start, aligned - start);
  out->data = aligned;
  out->size = round_up(size, kHugePage);
  char* end = aligned + out->size;
  if (end != start + padded) munmap(end, start + padded - end);
#ifdef MADV_HUGEPAGE
  if (huge_pages) madvise(aligned, out->size, MADV_HUGEPAGE);
#else
  (void)huge_pages;
#endif
  return true;
}

void unmap_memory(Mapping* m) {
  if (m->data) munmap(m->data, m->size);
  *m = Mapping();
}

}  // namespace tandem
