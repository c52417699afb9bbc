#define TANDEM_VARIANT portable
#include "vec_portable.h"
#include "variant.h"
