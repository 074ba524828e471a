/* e3m0: levels 0, +-1, +-2, +-4, ..., +-64, blocks of 256. kernels/reference/absmax.py. */

/* The code of a quotient. Adding half a unit of the exponent to the bits takes it to the power of two it is nearest to. */
ATOLL_TARGET static inline uint8_t e3m0_code(uint32_t bits) {
    int32_t magnitude = (int32_t)(bits & 0x7FFFFFFFu);
    int32_t code = ((magnitude + 0x400000) >> 23) - 126;
    int32_t least = magnitude >= 0x3F000000; /* from 1/2 on, level 1 */
    code = code > least ? code : least;
    return (uint8_t)(code | (code > 0 ? (int32_t)(bits >> 31) << 3 : 0));
}

ATOLL_TARGET static inline int e3m0_quantise(const float *values, int64_t m, uint32_t *scales, uint8_t *codes) {
    int32_t largest = largest_bits(values, m);
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    scales[0] = atoll_absmax_scale(atoll_float((uint32_t)largest), 64.0f, 0x7C7F);
    float inverse = atoll_inverse(scales[0]);
    for (int64_t i = 0; i < m; i++) codes[i] = e3m0_code(atoll_bits(values[i] * inverse));
    return 1;
}

/* 2^(e - 1) for e = 1 ... 7, and 0 for 0, with the sign of bit 3. */
static inline int e3m0_level(int code) {
    int magnitude = (1 << (code & 7)) >> 1;
    return code & 8 ? -magnitude : magnitude;
}

#define CODEC e3m0
#define CODEC_STRING "e3m0"
#define BITS 4
#define BLOCK 256
#define NUM_SCALES 1
#define MAX_SCALE_BITS 0x7C7F
#define UNUSED 8
#define LEVEL(c) e3m0_level(c)
#define SELECT(c) 0
#define QUANTISE e3m0_quantise
#ifdef ATOLL_ENCODE_E3M0
#define ENCODE_BLOCK ATOLL_ENCODE_E3M0
#define ACCUMULATE_BLOCK ATOLL_ACCUMULATE_E3M0
#endif
#include "block_codec.h"
