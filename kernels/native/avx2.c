/* x86-64-v3. A block of 256 values does not fit the registers: encoding reads it twice, from the first-level cache, and
 * sums are taken of 64 values at a time. */
#include "atoll.h"
#ifdef ATOLL_X86
#include <immintrin.h>

#define ATOLL_NAME "avx2"
#define ATOLL_VARIANT atoll_avx2
#define ATOLL_TARGET __attribute__((target("arch=x86-64-v3")))
#define PREFETCH_FLOATS 1024 /* 4 KiB ahead: the hardware's own prefetching stops at every page */

/* Copies past the cache, but for what does not fill a line. */
ATOLL_TARGET static inline void stream(uint8_t *target, const uint8_t *source, size_t num_bytes) {
    size_t first = -(uintptr_t)target & 63;
    first = first < num_bytes ? first : num_bytes;
    size_t end = first + ((num_bytes - first) & ~(size_t)63);
    memcpy(target, source, first);
    for (size_t i = first; i < end; i += 32)
        _mm256_stream_si256((__m256i *)(target + i), _mm256_loadu_si256((const __m256i *)(source + i)));
    memcpy(target + end, source + end, num_bytes - end);
}

ATOLL_TARGET static inline int32_t reduce_max(__m256i x) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(1, 0, 3, 2)));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(m);
}

/* Bits of the largest magnitude of num values. */
ATOLL_TARGET static inline int32_t largest_of(const float *values, const int num) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i even = _mm256_setzero_si256(), odd = even;
    for (int i = 0; i < num; i += 16) {
        _mm_prefetch((const char *)(values + i + PREFETCH_FLOATS), _MM_HINT_T0);
        __m256i a = _mm256_loadu_si256((const __m256i *)(values + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(values + i + 8));
        even = _mm256_max_epi32(even, _mm256_and_si256(a, magnitude));
        odd = _mm256_max_epi32(odd, _mm256_and_si256(b, magnitude));
    }
    return reduce_max(_mm256_max_epi32(even, odd));
}

/* Writes an absmax format's scale, and returns what to multiply the values by. */
ATOLL_TARGET static inline __m256 put_absmax_scale(int32_t largest, float top, uint32_t max_bits, uint8_t *scales) {
    uint32_t bits = atoll_absmax_scale(atoll_float((uint32_t)largest), top, max_bits);
    atoll_put_scale(scales, 0, bits);
    return _mm256_set1_ps(atoll_inverse(bits));
}

/* 4 vectors of 8 integers -> 32 bytes. The packs interleave lanes of 128 bits; the permutation undoes it. */
ATOLL_TARGET static inline __m256i in_order(__m256i low, __m256i high, const int is_signed) {
    __m256i packed = is_signed ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

ATOLL_TARGET static inline __m256i scaled(const float *values, __m256 inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values), inverse));
}

ATOLL_TARGET static inline int encode_int8(const float *values, uint8_t *scales, uint8_t *codes) {
    int32_t largest = largest_of(values, 256);
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    __m256 inverse = put_absmax_scale(largest, 127.0f, 0x7C01, scales);
    for (int i = 0; i < 256; i += 32) {
        __m256i low = _mm256_packs_epi32(scaled(values + i, inverse), scaled(values + i + 8, inverse));
        __m256i high = _mm256_packs_epi32(scaled(values + i + 16, inverse), scaled(values + i + 24, inverse));
        _mm256_storeu_si256((__m256i *)(codes + i), in_order(low, high, 1));
    }
    return 1;
}

ATOLL_TARGET static inline void accumulate_int8(const uint8_t *const *datas, const float *weights, int64_t k,
                                                int64_t scales, int64_t codes, float *out, int fresh) {
    for (int first = 0; first < 256; first += 64) {
        __m256 sum[8];
        for (int i = 0; i < 8; i++) sum[i] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(out + first + 8 * i);
        for (int64_t j = 0; j < k; j++) {
            __m256 factor = _mm256_set1_ps(atoll_scale_value(datas[j] + scales, 0) * weights[j]);
            for (int i = 0; i < 8; i++) {
                __m128i narrow = _mm_loadl_epi64((const __m128i *)(datas[j] + codes + first + 8 * i));
                __m256 level = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(narrow));
                sum[i] = _mm256_add_ps(sum[i], _mm256_mul_ps(factor, level));
            }
        }
        for (int i = 0; i < 8; i++) _mm256_storeu_ps(out + first + 8 * i, sum[i]);
    }
}

ATOLL_TARGET static inline __m256i code_int4(__m256 quotient) {
    return _mm256_and_si256(_mm256_cvtps_epi32(quotient), _mm256_set1_epi32(15));
}

/* See e3m0.h. */
ATOLL_TARGET static inline __m256i code_e3m0(__m256 quotient) {
    __m256i bits = _mm256_castps_si256(quotient), magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
    __m256i exponent = _mm256_srai_epi32(_mm256_add_epi32(magnitude, _mm256_set1_epi32(0x400000)), 23);
    __m256i code = _mm256_max_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(126)), _mm256_set1_epi32(1));
    __m256i sign = _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(8));
    __m256i not_zero = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x3EFFFFFF));
    return _mm256_and_si256(_mm256_or_si256(code, sign), not_zero);
}

/* Nibbles of num bytes, 32 values from either half of the block at a time. */
#define STORE_NIBBLES(CODE, values, inverse, num, codes)                                        \
    for (int i = 0; i < (num); i += 32) {                                                       \
        __m256i both[4];                                                                        \
        for (int j = 0; j < 4; j++) {                                                           \
            const float *low = (values) + i + 8 * j;                                            \
            __m256i high = CODE(_mm256_mul_ps(_mm256_loadu_ps(low + (num)), inverse));          \
            both[j] = CODE(_mm256_mul_ps(_mm256_loadu_ps(low), inverse));                       \
            both[j] = _mm256_or_si256(both[j], _mm256_slli_epi32(high, 4));                     \
        }                                                                                       \
        __m256i first = _mm256_packus_epi32(both[0], both[1]);                                  \
        __m256i second = _mm256_packus_epi32(both[2], both[3]);                                 \
        _mm256_storeu_si256((__m256i *)((codes) + i), in_order(first, second, 0));              \
    }

ATOLL_TARGET static inline int encode_int4(const float *values, uint8_t *scales, uint8_t *codes) {
    int32_t largest = largest_of(values, 64);
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    __m256 inverse = put_absmax_scale(largest, 7.0f, 0x7E12, scales);
    STORE_NIBBLES(code_int4, values, inverse, 32, codes)
    return 1;
}

ATOLL_TARGET static inline int encode_e3m0(const float *values, uint8_t *scales, uint8_t *codes) {
    int32_t largest = largest_of(values, 256);
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    __m256 inverse = put_absmax_scale(largest, 64.0f, 0x7C7F, scales);
    STORE_NIBBLES(code_e3m0, values, inverse, 128, codes)
    return 1;
}

/* Entry code of a table of 16; only four bits of a code count. */
ATOLL_TARGET static inline __m256 entry(__m256 below_8, __m256 above_7, __m256i code) {
    __m256 bit_3 = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(below_8, code), _mm256_permutevar8x32_ps(above_7, code), bit_3);
}

/* Adds num values of every contribution, whose nibbles choose among 16 levels, 64 at a time. */
ATOLL_TARGET static inline void accumulate_nibbles(const uint8_t *const *datas, const float *weights, int64_t k,
                                                   int64_t scales, int64_t codes, float *out, int fresh, const int num,
                                                   __m256 below_8, __m256 above_7) {
    for (int first = 0; first < num / 2; first += 32) {
        __m256 low[4], high[4];
        for (int i = 0; i < 4; i++) low[i] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(out + first + 8 * i);
        for (int i = 0; i < 4; i++)
            high[i] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(out + num / 2 + first + 8 * i);
        for (int64_t j = 0; j < k; j++) {
            __m256 factor = _mm256_set1_ps(atoll_scale_value(datas[j] + scales, 0) * weights[j]);
            __m256 below = _mm256_mul_ps(factor, below_8), above = _mm256_mul_ps(factor, above_7);
            for (int i = 0; i < 4; i++) {
                __m128i narrow = _mm_loadl_epi64((const __m128i *)(datas[j] + codes + first + 8 * i));
                __m256i code = _mm256_cvtepu8_epi32(narrow);
                low[i] = _mm256_add_ps(low[i], entry(below, above, code));
                high[i] = _mm256_add_ps(high[i], entry(below, above, _mm256_srli_epi32(code, 4)));
            }
        }
        for (int i = 0; i < 4; i++) _mm256_storeu_ps(out + first + 8 * i, low[i]);
        for (int i = 0; i < 4; i++) _mm256_storeu_ps(out + num / 2 + first + 8 * i, high[i]);
    }
}

ATOLL_TARGET static inline void accumulate_int4(const uint8_t *const *datas, const float *weights, int64_t k,
                                                int64_t scales, int64_t codes, float *out, int fresh) {
    accumulate_nibbles(datas, weights, k, scales, codes, out, fresh, 64, _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7),
                       _mm256_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1));
}

ATOLL_TARGET static inline void accumulate_e3m0(const uint8_t *const *datas, const float *weights, int64_t k,
                                                int64_t scales, int64_t codes, float *out, int fresh) {
    accumulate_nibbles(datas, weights, k, scales, codes, out, fresh, 256, _mm256_setr_ps(0, 1, 2, 4, 8, 16, 32, 64),
                       _mm256_setr_ps(0, -1, -2, -4, -8, -16, -32, -64));
}

/* The permutation looks at three bits: two of the value's own and one of the next, for which the table is repeated. */
ATOLL_TARGET static inline void accumulate_stat2(const uint8_t *const *datas, const float *weights, int64_t k,
                                                 int64_t scales, int64_t codes, float *out, int fresh) {
    for (int first = 0; first < 64; first += 16) {
        __m256 sum[8];
        for (int i = 0; i < 8; i++) {
            const float *place = out + first + 64 * (i / 2) + 8 * (i % 2);
            sum[i] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(place);
        }
        for (int64_t j = 0; j < k; j++) {
            float inner = atoll_scale_value(datas[j] + scales, 0) * weights[j];
            float outer = atoll_scale_value(datas[j] + scales, 1) * weights[j];
            __m256 table = _mm256_setr_ps(inner, outer, -inner, -outer, inner, outer, -inner, -outer);
            for (int half = 0; half < 2; half++) {
                __m128i narrow = _mm_loadl_epi64((const __m128i *)(datas[j] + codes + first + 8 * half));
                __m256i code = _mm256_cvtepu8_epi32(narrow);
                for (int slot = 0; slot < 4; slot++) {
                    __m256 value = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(code, 2 * slot));
                    sum[2 * slot + half] = _mm256_add_ps(sum[2 * slot + half], value);
                }
            }
        }
        for (int i = 0; i < 8; i++) _mm256_storeu_ps(out + first + 64 * (i / 2) + 8 * (i % 2), sum[i]);
    }
}

#define ATOLL_STREAM stream
#define ATOLL_STREAM_END _mm_sfence()
#define ATOLL_ACCUMULATE_STAT2 accumulate_stat2
#define ATOLL_ENCODE_INT8 encode_int8
#define ATOLL_ACCUMULATE_INT8 accumulate_int8
#define ATOLL_ENCODE_INT4 encode_int4
#define ATOLL_ACCUMULATE_INT4 accumulate_int4
#define ATOLL_ENCODE_E3M0 encode_e3m0
#define ATOLL_ACCUMULATE_E3M0 accumulate_e3m0
#include "portable.h"
#endif
