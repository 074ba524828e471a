/* x86-64-v4. A block of up to 256 values is 16 registers, so that encoding reads it once, and summing writes it once. */
#include "atoll.h"
#ifdef ATOLL_X86
#include <immintrin.h>

#define ATOLL_NAME "avx512"
#define ATOLL_VARIANT atoll_avx512
#define ATOLL_TARGET __attribute__((target("arch=x86-64-v4")))
#define PREFETCH_FLOATS 1024 /* 4 KiB ahead: the hardware's own prefetching stops at every page */

/* Copies past the cache, but for what does not fill a line. */
ATOLL_TARGET static inline void stream(uint8_t *target, const uint8_t *source, size_t num_bytes) {
    size_t first = -(uintptr_t)target & 63;
    first = first < num_bytes ? first : num_bytes;
    size_t end = first + ((num_bytes - first) & ~(size_t)63);
    memcpy(target, source, first);
    for (size_t i = first; i < end; i += 64) _mm512_stream_si512((void *)(target + i), _mm512_loadu_si512(source + i));
    memcpy(target + end, source + end, num_bytes - end);
}

/* Loads num vectors of a block; the bits of the largest magnitude. What is next is fetched into the first-level cache, or,
 * where the memory is what it waits for, only into the second. */
ATOLL_TARGET static inline int32_t load_block(const float *values, __m512 *x, const int num, const int is_fast) {
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i largest = _mm512_setzero_si512();
    for (int i = 0; i < num; i++) {
        if (is_fast)
            _mm_prefetch((const char *)(values + 16 * i + PREFETCH_FLOATS), _MM_HINT_T1);
        else
            _mm_prefetch((const char *)(values + 16 * i + PREFETCH_FLOATS), _MM_HINT_T0);
        x[i] = _mm512_loadu_ps(values + 16 * i);
        largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_castps_si512(x[i]), magnitude));
    }
    return _mm512_reduce_max_epi32(largest);
}

/* Writes an absmax format's scale, and returns what to multiply the values by. */
ATOLL_TARGET static inline __m512 put_absmax_scale(int32_t largest, float top, uint32_t max_bits, uint8_t *scales) {
    uint32_t bits = atoll_absmax_scale(atoll_float((uint32_t)largest), top, max_bits);
    atoll_put_scale(scales, 0, bits);
    return _mm512_set1_ps(atoll_inverse(bits));
}

/* Four vectors of 16 scaled values -> 64 codes. The packs interleave lanes of 128 bits; the permutation undoes it. */
ATOLL_TARGET static inline __m512i bytes_of(const __m512 *values, __m512 inverse, __m512i order) {
    __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(values[0], inverse));
    __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(values[1], inverse));
    __m512i c = _mm512_cvtps_epi32(_mm512_mul_ps(values[2], inverse));
    __m512i d = _mm512_cvtps_epi32(_mm512_mul_ps(values[3], inverse));
    __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    return _mm512_permutexvar_epi32(order, packed);
}

ATOLL_TARGET static inline int encode_int8(const float *values, uint8_t *scales, uint8_t *codes) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512 x[16];
    int32_t largest = load_block(values, x, 16, 1);
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    __m512 inverse = put_absmax_scale(largest, 127.0f, 0x7C01, scales);
    for (int i = 0; i < 16; i += 4) _mm512_storeu_si512(codes + 16 * i, bytes_of(x + i, inverse, order));
    return 1;
}

ATOLL_TARGET static inline void accumulate_int8(const uint8_t *const *datas, const float *weights, int64_t k,
                                                int64_t scales, int64_t codes, float *out, int fresh) {
    __m512 sum[16];
    for (int i = 0; i < 16; i++) sum[i] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(out + 16 * i);
    for (int64_t j = 0; j < k; j++) {
        __m512 factor = _mm512_set1_ps(atoll_scale_value(datas[j] + scales, 0) * weights[j]);
        for (int i = 0; i < 16; i++) {
            __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(datas[j] + codes + 16 * i)));
            sum[i] = _mm512_add_ps(sum[i], _mm512_mul_ps(factor, _mm512_cvtepi32_ps(wide)));
        }
    }
    for (int i = 0; i < 16; i++) _mm512_storeu_ps(out + 16 * i, sum[i]);
}

ATOLL_TARGET static inline __m512i code_int4(__m512 quotient) {
    return _mm512_and_si512(_mm512_cvtps_epi32(quotient), _mm512_set1_epi32(15));
}

/* See e3m0.h. */
ATOLL_TARGET static inline __m512i code_e3m0(__m512 quotient) {
    __m512i bits = _mm512_castps_si512(quotient), magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    __m512i exponent = _mm512_srai_epi32(_mm512_add_epi32(magnitude, _mm512_set1_epi32(0x400000)), 23);
    __m512i code = _mm512_sub_epi32(exponent, _mm512_set1_epi32(126));
    __mmask16 not_zero = _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(0x3F000000));
    code = _mm512_maskz_max_epi32(not_zero, code, _mm512_set1_epi32(1));
    return _mm512_mask_or_epi32(code, _mm512_movepi32_mask(bits) & not_zero, code, _mm512_set1_epi32(8));
}

/* Nibbles of num bytes, 16 values from either half of the block at a time. */
#define STORE_NIBBLES(CODE, x, inverse, num, codes)                                             \
    for (int i = 0; i < (num) / 16; i++) {                                                      \
        __m512i low = CODE(_mm512_mul_ps(x[i], inverse));                                       \
        __m512i high = CODE(_mm512_mul_ps(x[i + (num) / 16], inverse));                         \
        __m512i both = _mm512_or_si512(low, _mm512_slli_epi32(high, 4));                        \
        _mm_storeu_si128((__m128i *)((codes) + 16 * i), _mm512_cvtepi32_epi8(both));            \
    }

ATOLL_TARGET static inline int encode_int4(const float *values, uint8_t *scales, uint8_t *codes) {
    __m512 x[4];
    int32_t largest = load_block(values, x, 4, 0);
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    __m512 inverse = put_absmax_scale(largest, 7.0f, 0x7E12, scales);
    STORE_NIBBLES(code_int4, x, inverse, 32, codes)
    return 1;
}

ATOLL_TARGET static inline int encode_e3m0(const float *values, uint8_t *scales, uint8_t *codes) {
    __m512 x[16];
    int32_t largest = load_block(values, x, 16, 0);
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    __m512 inverse = put_absmax_scale(largest, 64.0f, 0x7C7F, scales);
    STORE_NIBBLES(code_e3m0, x, inverse, 128, codes)
    return 1;
}

/* Adds num values of every contribution, whose nibbles choose among 16 levels. The permutation looks at four bits only. */
ATOLL_TARGET static inline void accumulate_nibbles(const uint8_t *const *datas, const float *weights, int64_t k,
                                                   int64_t scales, int64_t codes, float *out, int fresh, const int num,
                                                   __m512 levels) {
    __m512 sum[16];
    const int half = num / 32;
    for (int i = 0; i < 2 * half; i++) sum[i] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(out + 16 * i);
    for (int64_t j = 0; j < k; j++) {
        __m512 table = _mm512_mul_ps(_mm512_set1_ps(atoll_scale_value(datas[j] + scales, 0) * weights[j]), levels);
        for (int i = 0; i < half; i++) {
            __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(datas[j] + codes + 16 * i)));
            sum[i] = _mm512_add_ps(sum[i], _mm512_permutexvar_ps(code, table));
            sum[i + half] = _mm512_add_ps(sum[i + half], _mm512_permutexvar_ps(_mm512_srli_epi32(code, 4), table));
        }
    }
    for (int i = 0; i < 2 * half; i++) _mm512_storeu_ps(out + 16 * i, sum[i]);
}

ATOLL_TARGET static inline void accumulate_int4(const uint8_t *const *datas, const float *weights, int64_t k,
                                                int64_t scales, int64_t codes, float *out, int fresh) {
    __m512 levels = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    accumulate_nibbles(datas, weights, k, scales, codes, out, fresh, 64, levels);
}

ATOLL_TARGET static inline void accumulate_e3m0(const uint8_t *const *datas, const float *weights, int64_t k,
                                                int64_t scales, int64_t codes, float *out, int fresh) {
    __m512 levels = _mm512_setr_ps(0, 1, 2, 4, 8, 16, 32, 64, 0, -1, -2, -4, -8, -16, -32, -64);
    accumulate_nibbles(datas, weights, k, scales, codes, out, fresh, 256, levels);
}

/* See stat2.h. */
ATOLL_TARGET static inline int encode_stat2(const float *values, uint8_t *scales, uint8_t *codes) {
    __m512 x[16];
    __m512i quotient[16], sum = _mm512_setzero_si512();
    int32_t largest = load_block(values, x, 16, 0), exponent = (largest >> 23) - 127;
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    if (exponent < -116) {
        memset(scales, 0, 4);
        memset(codes, 0, 64);
        return 1;
    }
    __m512 factor = _mm512_set1_ps(atoll_float((uint32_t)(137 - exponent) << 23));
    for (int i = 0; i < 16; i++) {
        quotient[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_abs_ps(x[i]), factor));
        sum = _mm512_add_epi32(sum, quotient[i]);
    }
    int32_t total = _mm512_reduce_add_epi32(sum), limit = 315 * total / (256 * 256), num_outer = 0, sum_outer = 0;
    __mmask16 outer[16];
    for (int round = 0; round <= ATOLL_STAT2_REFINEMENTS; round++) {
        if (round > 0) limit = atoll_stat2_limit(total, 256, sum_outer, num_outer, limit);
        num_outer = 0;
        sum = _mm512_setzero_si512();
        for (int i = 0; i < 16; i++) {
            outer[i] = _mm512_cmpgt_epi32_mask(quotient[i], _mm512_set1_epi32(limit));
            num_outer += __builtin_popcount(outer[i]);
            sum = _mm512_mask_add_epi32(sum, outer[i], sum, quotient[i]);
        }
        sum_outer = _mm512_reduce_add_epi32(sum);
    }
    uint32_t bits[2];
    atoll_stat2_scales(total, 256, sum_outer, num_outer, atoll_float((uint32_t)(117 + exponent) << 23), bits);
    for (int i = 0; i < 2; i++) atoll_put_scale(scales, i, bits[i]);
    for (int i = 0; i < 4; i++) {
        __m512i both = _mm512_setzero_si512();
        for (int slot = 0; slot < 4; slot++) {
            int j = 4 * slot + i;
            __mmask16 negative = _mm512_cmp_ps_mask(x[j], _mm512_setzero_ps(), _CMP_LT_OQ);
            both = _mm512_mask_or_epi32(both, outer[j], both, _mm512_set1_epi32(1 << 2 * slot));
            both = _mm512_mask_or_epi32(both, negative, both, _mm512_set1_epi32(2 << 2 * slot));
        }
        _mm_storeu_si128((__m128i *)(codes + 16 * i), _mm512_cvtepi32_epi8(both));
    }
    return 1;
}

/* The permutation looks at four bits: two of the value's own and two of the next, for which the table is repeated. */
ATOLL_TARGET static inline void accumulate_stat2(const uint8_t *const *datas, const float *weights, int64_t k,
                                                 int64_t scales, int64_t codes, float *out, int fresh) {
    __m512 sum[16];
    for (int i = 0; i < 16; i++) sum[i] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(out + 16 * i);
    for (int64_t j = 0; j < k; j++) {
        float inner = atoll_scale_value(datas[j] + scales, 0) * weights[j];
        float outer = atoll_scale_value(datas[j] + scales, 1) * weights[j];
        __m512 table = _mm512_broadcast_f32x4(_mm_setr_ps(inner, outer, -inner, -outer));
        for (int i = 0; i < 4; i++) {
            __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(datas[j] + codes + 16 * i)));
            for (int slot = 0; slot < 4; slot++) {
                __m512 value = _mm512_permutexvar_ps(_mm512_srli_epi32(code, 2 * slot), table);
                sum[4 * slot + i] = _mm512_add_ps(sum[4 * slot + i], value);
            }
        }
    }
    for (int i = 0; i < 16; i++) _mm512_storeu_ps(out + 16 * i, sum[i]);
}

#define ATOLL_STREAM stream
#define ATOLL_STREAM_END _mm_sfence()
#define ATOLL_ENCODE_STAT2 encode_stat2
#define ATOLL_ACCUMULATE_STAT2 accumulate_stat2
#define ATOLL_ENCODE_INT8 encode_int8
#define ATOLL_ACCUMULATE_INT8 accumulate_int8
#define ATOLL_ENCODE_INT4 encode_int4
#define ATOLL_ACCUMULATE_INT4 accumulate_int4
#define ATOLL_ENCODE_E3M0 encode_e3m0
#define ATOLL_ACCUMULATE_E3M0 accumulate_e3m0
#include "portable.h"
#endif
