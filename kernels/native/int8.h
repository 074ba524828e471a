/* int8: levels -127 ... 127, blocks of 256. kernels/reference/absmax.py. */
ATOLL_TARGET static inline int int8_quantise(const float *values, int64_t m, uint32_t *scales, uint8_t *codes) {
    int32_t largest = largest_bits(values, m);
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    scales[0] = atoll_absmax_scale(atoll_float((uint32_t)largest), 127.0f, 0x7C01);
    float inverse = atoll_inverse(scales[0]);
    for (int64_t i = 0; i < m; i++) codes[i] = (uint8_t)atoll_bits(values[i] * inverse + ATOLL_ROUNDER);
    return 1;
}

#define CODEC int8
#define CODEC_STRING "int8"
#define BITS 8
#define BLOCK 256
#define NUM_SCALES 1
#define MAX_SCALE_BITS 0x7C01
#define UNUSED 128
#define LEVEL(c) ((int8_t)(c))
#define SELECT(c) 0
#define QUANTISE int8_quantise
#ifdef ATOLL_ENCODE_INT8
#define ENCODE_BLOCK ATOLL_ENCODE_INT8
#define ACCUMULATE_BLOCK ATOLL_ACCUMULATE_INT8
#endif
#include "block_codec.h"
