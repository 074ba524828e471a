/* x86-64-v3. */
#include "atoll.h"
#ifdef ATOLL_X86
#define ATOLL_NAME "avx2"
#define ATOLL_VARIANT atoll_avx2
#define ATOLL_TARGET __attribute__((target("arch=x86-64-v3")))
#include "portable.h"
#endif
