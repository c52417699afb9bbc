#define TANDEM_VARIANT avx512
#ifndef TANDEM_STUB
#include "vec_avx512.h"
#endif
#include "variant.h"
