/* Whatever the compiler's default target has: SSE2 on x86-64, NEON on Arm. */
#define ATOLL_NAME "baseline"
#define ATOLL_VARIANT atoll_baseline
#define ATOLL_TARGET
#include "portable.h"
