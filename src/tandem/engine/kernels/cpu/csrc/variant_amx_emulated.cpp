// The AMX tiles in plain C++: slow, for tests of their addressing only. Never chosen by itself.
#define TANDEM_VARIANT amx_emulated
#define TANDEM_EMULATE_AMX
#include "vec_portable.h"
#include "tile_amx.h"
#define TANDEM_TILE_AMX
#include "variant.h"
