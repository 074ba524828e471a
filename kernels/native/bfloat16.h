/* bfloat16, rounded to nearest even, subnormals kept. kernels/reference/values.py. */
#ifndef ATOLL_BFLOAT16
#define ATOLL_BFLOAT16
static inline uint32_t atoll_to_bfloat16(float value) {
    uint32_t bits = atoll_bits(value), magnitude = bits & 0x7FFFFFFFu;
    uint32_t rounded = (magnitude + 0x7FFFu + ((magnitude >> 16) & 1u)) >> 16;
    rounded = magnitude < (uint32_t)ATOLL_INFINITY_BITS ? rounded : 0x7F80u; /* else the addition might run over */
    return rounded | (bits >> 16 & 0x8000u);
}
#endif

#define CODEC bfloat16
#define CODEC_STRING "bfloat16"
#define BYTES 2
#define WRITE(value) atoll_to_bfloat16(value)
#define READ(bits) atoll_float((bits) << 16)
#include "value_codec.h"
