/* x86-64-v4. */
#include "atoll.h"
#ifdef ATOLL_X86
#define ATOLL_NAME "avx512"
#define ATOLL_VARIANT atoll_avx512
#define ATOLL_TARGET __attribute__((target("arch=x86-64-v4")))
#include "portable.h"
#endif
