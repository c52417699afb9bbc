// What the processor and the operating system say they can do. Whether it is true, a probe in a process of its own finds out.
#include "decoder.h"

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tandem {
namespace {

struct Cpu {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx = false;

  Cpu() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const bool fma = c & (1u << 12), osxsave = c & (1u << 27), avx = c & (1u << 28);
    if (!osxsave || !avx) return;
    const uint64_t enabled = xcr0();
    if ((enabled & 0x6) != 0x6) return;                     // the system doesn't save the wide registers
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    avx2 = fma && (b & (1u << 5));
    const unsigned f_dq_bw_vl = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);
    avx512 = avx2 && (enabled & 0xe6) == 0xe6 && (b & f_dq_bw_vl) == f_dq_bw_vl;
    const bool amx_bf16 = (d & (1u << 22)) && (d & (1u << 24));
    if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return;
    avx512_bf16 = avx512 && (a & (1u << 5));
    amx = avx512_bf16 && amx_bf16 && (enabled & 0x60000) == 0x60000 && tiles_permitted();
  }

  static uint64_t xcr0() {
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
  }

  static bool tiles_permitted() {  // Linux gives the 8 KiB of tile state only to processes that ask
#ifdef __linux__
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
  }
};

}  // namespace

bool cpu_supports(int index) {
  static const Cpu cpu;
  switch (index) {
    case 0: return cpu.amx;
    case 1: return cpu.avx512_bf16;
    case 2: return cpu.avx512;
    case 3: return cpu.avx2;
    default: return true;
  }
}

}  // namespace tandem
#else
namespace tandem {
bool cpu_supports(int index) { return index >= 4; }
}  // namespace tandem
#endif
