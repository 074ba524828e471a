/* stat2: a sign and one of two magnitudes, blocks of 256. kernels/reference/stat2.py. */
ATOLL_TARGET static int stat2_quantise(const float *values, int64_t m, uint32_t *scales, uint8_t *codes) {
    int32_t largest = largest_bits(values, m), exponent = (largest >> 23) - 127;
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    scales[0] = scales[1] = 0;
    memset(codes, 0, 256);
    if (exponent < -116) return 1;
    int32_t quotients[256], total = 0;
    float factor = atoll_float((uint32_t)(137 - exponent) << 23);
    for (int64_t i = 0; i < m; i++) {
        float magnitude = atoll_float(atoll_bits(values[i]) & 0x7FFFFFFFu);
        quotients[i] = (int32_t)(atoll_bits(magnitude * factor + ATOLL_ROUNDER) - 0x4B400000u);
        total += quotients[i];
    }
    int32_t limit = 315 * total / (256 * (int32_t)m), num_outer = 0, sum_outer = 0;
    for (int round = 0; round <= ATOLL_STAT2_REFINEMENTS; round++) {
        if (round > 0) limit = atoll_stat2_limit(total, (int32_t)m, sum_outer, num_outer, limit);
        num_outer = sum_outer = 0;
        for (int64_t i = 0; i < m; i++) {
            int32_t outer = quotients[i] > limit;
            num_outer += outer;
            sum_outer += outer ? quotients[i] : 0;
        }
    }
    atoll_stat2_scales(total, (int32_t)m, sum_outer, num_outer, atoll_float((uint32_t)(117 + exponent) << 23), scales);
    for (int64_t i = 0; i < m; i++) codes[i] = (uint8_t)((quotients[i] > limit) | (values[i] < 0.0f) << 1);
    return 1;
}

#define CODEC stat2
#define CODEC_STRING "stat2"
#define BITS 2
#define BLOCK 256
#define NUM_SCALES 2
#define MAX_SCALE_BITS 0x7F7F
#define UNUSED -1
#define LEVEL(c) (1 - ((c) & 2))
#define SELECT(c) ((c) & 1)
#define QUANTISE stat2_quantise
#ifdef ATOLL_ENCODE_STAT2
#define ENCODE_BLOCK ATOLL_ENCODE_STAT2
#endif
#ifdef ATOLL_ACCUMULATE_STAT2
#define ACCUMULATE_BLOCK ATOLL_ACCUMULATE_STAT2
#endif
#include "block_codec.h"
