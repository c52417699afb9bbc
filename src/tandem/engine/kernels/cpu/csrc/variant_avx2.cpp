#define TANDEM_VARIANT avx2
#ifndef TANDEM_STUB
#include "vec_avx2.h"
#endif
#include "variant.h"
