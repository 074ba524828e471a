/* int4: levels -7 ... 7, blocks of 64. kernels/reference/absmax.py. */
ATOLL_TARGET static inline int int4_quantise(const float *values, int64_t m, uint32_t *scales, uint8_t *codes) {
    int32_t largest = largest_bits(values, m);
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    scales[0] = atoll_absmax_scale(atoll_float((uint32_t)largest), 7.0f, 0x7E12);
    float inverse = atoll_inverse(scales[0]);
    for (int64_t i = 0; i < m; i++) codes[i] = (uint8_t)(atoll_bits(values[i] * inverse + ATOLL_ROUNDER) & 15u);
    return 1;
}

#define CODEC int4
#define CODEC_STRING "int4"
#define BITS 4
#define BLOCK 64
#define NUM_SCALES 1
#define MAX_SCALE_BITS 0x7E12
#define UNUSED 8
#define LEVEL(c) (((c) ^ 8) - 8)
#define SELECT(c) 0
#define QUANTISE int4_quantise
#ifdef ATOLL_ENCODE_INT4
#define ENCODE_BLOCK ATOLL_ENCODE_INT4
#define ACCUMULATE_BLOCK ATOLL_ACCUMULATE_INT4
#endif
#include "block_codec.h"
