#define TANDEM_VARIANT avx512_bf16
#ifndef TANDEM_STUB
#include "vec_avx512.h"
#include "tile_bf16.h"
#define TANDEM_TILE_BF16
#endif
#include "variant.h"
