// Products of weights with AMX; attention, whose tiles are small, with AVX-512's bf16 dot product.
#define TANDEM_VARIANT amx
#ifndef TANDEM_STUB
#include "vec_avx512.h"
#include "tile_bf16.h"
#include "tile_amx.h"
#define TANDEM_TILE_BF16
#define TANDEM_TILE_AMX
#endif
#include "variant.h"
