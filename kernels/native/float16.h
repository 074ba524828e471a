/* float16, rounded to nearest even, subnormals kept. kernels/reference/values.py. */
#ifndef ATOLL_FLOAT16
#define ATOLL_FLOAT16
/* By masks: compilers do not vectorise a choice, one side of which is a float operation. */
static inline uint32_t atoll_choose(int condition, uint32_t then, uint32_t otherwise) {
    uint32_t mask = 0u - (uint32_t)condition;
    return (then & mask) | (otherwise & ~mask);
}

static inline uint32_t atoll_to_float16(float value) {
    uint32_t bits = atoll_bits(value), magnitude = bits & 0x7FFFFFFFu;
    /* Normal numbers: the exponent is moved, and 13 digits rounded off, which may carry into it. */
    uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    normal = magnitude >= 0x477FF000u ? 0x7C00u : normal; /* from 65,520 on, infinity */
    /* Below 2^-14: adding 1/2, whose last digit is 2^-24, rounds to a multiple of that. */
    uint32_t subnormal = atoll_bits(atoll_float(magnitude) + 0.5f) - 0x3F000000u;
    return atoll_choose(magnitude < 0x38800000u, subnormal, normal) | (bits >> 16 & 0x8000u);
}

static inline float atoll_from_float16(uint32_t bits) {
    uint32_t magnitude = bits & 0x7FFFu;
    uint32_t normal = (magnitude << 13) + (magnitude < 0x7C00u ? 112u << 23 : 224u << 23); /* infinity stays so */
    uint32_t subnormal = atoll_bits((float)(int32_t)magnitude * 0x1p-24f);
    return atoll_float(atoll_choose(magnitude < 0x400u, subnormal, normal) | (bits & 0x8000u) << 16);
}
#endif

#define CODEC float16
#define CODEC_STRING "float16"
#define BYTES 2
#define WRITE(value) atoll_to_float16(value)
#define READ(bits) atoll_from_float16(bits)
#include "value_codec.h"
