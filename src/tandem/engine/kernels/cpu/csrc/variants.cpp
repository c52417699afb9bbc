#include "decoder.h"

namespace tandem {

const Variant* variant_amx();
const Variant* variant_avx512_bf16();
const Variant* variant_avx512();
const Variant* variant_avx2();
const Variant* variant_portable();
const Variant* variant_amx_emulated();

const Variant* variant_at(int index) {  // best first; build.py and decoder.py have the same order
  switch (index) {
    case 0: return variant_amx();
    case 1: return variant_avx512_bf16();
    case 2: return variant_avx512();
    case 3: return variant_avx2();
    case 4: return variant_portable();
    case 5: return variant_amx_emulated();
    default: return nullptr;
  }
}

}  // namespace tandem
