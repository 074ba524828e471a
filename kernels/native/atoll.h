/* Kernels of atoll that give the same bits on every machine; kernels/reference/ is their specification.
 *
 * Each variant of the instruction set is one file that defines ATOLL_VARIANT and ATOLL_TARGET and includes portable.h;
 * dispatch.c chooses among the tables at run time. (gcc's target_clones does the same through ifuncs, but then a test
 * cannot force a variant, and musl has no ifuncs.) Everything must be compiled with -ffp-contract=off and without
 * -ffast-math. */
#ifndef ATOLL_H
#define ATOLL_H

#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ATOLL_MIN_SCALE_BITS 0x0080u  /* bfloat16 2^-126 */
#define ATOLL_INFINITY_BITS 0x7F800000
#define ATOLL_LARGE (1 << 21)         /* values from which on writes go past the cache; chunks are smaller */
#define ATOLL_LANES 4096
#define ATOLL_GROUP 4096              /* values among which the largest are chosen */
#define ATOLL_ROUNDER 12582912.0f     /* 1.5 * 2^23: x + this rounds |x| < 2^22 to nearest even, in the low bits */

#ifdef __FAST_MATH__
#error "fast-math gives other bits"
#endif
#if FLT_EVAL_METHOD != 0
#error "float operations must round to float: on 32-bit x86 compile with -msse2 -mfpmath=sse"
#endif

/* One format's kernels. All pointers to float are aligned to 4 bytes, to double to 8; data may be unaligned. Lengths are in
 * elements. */
typedef struct {
    const char *name;
    int64_t (*encode)(const float *values, int64_t n, uint8_t *data);
    void (*decode)(const uint8_t *data, int64_t n, float *out);
    void (*accumulate)(const uint8_t *const *datas, const float *weights, int64_t k, int64_t n, float *out, int fresh);
    int64_t (*check)(const uint8_t *data, int64_t n);
    void (*dots)(const uint8_t *data, const uint8_t *other, int64_t n, double *terms);
} atoll_codec;

typedef struct {
    const char *name;
    const atoll_codec *const *codecs; /* ends with NULL */
    int64_t (*largest)(const float *values, int64_t n, int64_t kept, uint16_t *indices);
    void (*nonzero_rows)(const float *values, int64_t n, int64_t width, uint8_t *present);
    void (*nesterov)(float *anchor, float *momentum, const float *mean, int64_t n, float lr, float beta);
    void (*fill_normal)(float *out, int64_t n, uint64_t key, uint64_t start, float factor);
} atoll_variant;

extern const atoll_variant atoll_baseline;
#if defined(__x86_64__) && defined(__GNUC__)
#define ATOLL_X86 1
extern const atoll_variant atoll_avx2;
extern const atoll_variant atoll_avx512;
#endif

static inline uint32_t atoll_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float atoll_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The scale numbered index of an encoding: bfloat16 bits. */
static inline uint32_t atoll_get_scale(const uint8_t *data, int64_t index) {
    return (uint32_t)data[2 * index] | (uint32_t)data[2 * index + 1] << 8;
}

static inline void atoll_put_scale(uint8_t *data, int64_t index, uint32_t bits) {
    data[2 * index] = (uint8_t)bits;
    data[2 * index + 1] = (uint8_t)(bits >> 8);
}

static inline float atoll_scale_value(const uint8_t *data, int64_t index) {
    return atoll_float(atoll_get_scale(data, index) << 16);
}

/* Upper half of a finite float, rounded to nearest even. */
static inline uint32_t atoll_bfloat16(float value) {
    uint32_t raw = atoll_bits(value);
    return (raw + 0x7FFFu + ((raw >> 16) & 1u)) >> 16;
}

/* bfloat16 bits of max|x| / top, at most max_bits, or 0 for a block too small to have a scale. */
static inline uint32_t atoll_absmax_scale(float largest, float top, uint32_t max_bits) {
    uint32_t bits = atoll_bfloat16(largest / top);
    bits = bits > max_bits ? max_bits : bits;
    return bits < ATOLL_MIN_SCALE_BITS ? 0 : bits;
}

/* What a block's values are multiplied by. A zero block's by zero: x * 0 is a zero, and its code 0. */
static inline float atoll_inverse(uint32_t bits) { return bits ? 1.0f / atoll_float(bits << 16) : 0.0f; }

/* stat2 (stat2.h): what its variants share. */
#define ATOLL_STAT2_REFINEMENTS 3

static inline uint32_t atoll_stat2_scale(int32_t sum, int32_t num, float unit) {
    uint32_t bits = atoll_bfloat16((float)sum / (float)num * unit);
    bits = bits > 0x7F7Fu ? 0x7F7Fu : bits;
    return bits < ATOLL_MIN_SCALE_BITS ? 0 : bits;
}

static inline void atoll_stat2_scales(int32_t total, int32_t m, int32_t sum_outer, int32_t num_outer, float unit,
                                      uint32_t *scales) {
    scales[0] = atoll_stat2_scale(total - sum_outer, m - num_outer, unit);
    scales[1] = num_outer ? atoll_stat2_scale(sum_outer, num_outer, unit) : scales[0];
}

/* The middle between the means of the inner and the outer ones. */
static inline int32_t atoll_stat2_limit(int32_t total, int32_t m, int32_t sum_outer, int32_t num_outer, int32_t limit) {
    int32_t num_inner = m - num_outer, sum_inner = total - sum_outer;
    return num_outer ? (sum_inner * num_outer + sum_outer * num_inner) / (2 * num_inner * num_outer) : limit;
}

static inline int64_t atoll_first_non_finite(const float *values, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if ((atoll_bits(values[i]) & 0x7FFFFFFFu) >= ATOLL_INFINITY_BITS) return i;
    return -1;
}

#endif
