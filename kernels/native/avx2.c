/* x86-64-v3. A block of 256 values does not fit the registers: encoding reads it twice, from the first-level cache. */
#include "atoll.h"
#ifdef ATOLL_X86
#include <immintrin.h>

#define ATOLL_NAME "avx2"
#define ATOLL_VARIANT atoll_avx2
#define ATOLL_TARGET __attribute__((target("arch=x86-64-v3")))
#define PREFETCH_FLOATS 1024 /* 4 KiB ahead: the hardware's own prefetching stops at every page */
#define STRIP 64             /* values summed at a time: 8 registers */

ATOLL_TARGET static inline __m256i scaled(const float *values, __m256 inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values), inverse));
}

/* 32 values -> 32 codes. The packs interleave lanes of 128 bits; the permutation undoes it. */
ATOLL_TARGET static inline __m256i codes_of(const float *values, __m256 inverse) {
    __m256i low = _mm256_packs_epi32(scaled(values, inverse), scaled(values + 8, inverse));
    __m256i high = _mm256_packs_epi32(scaled(values + 16, inverse), scaled(values + 24, inverse));
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

ATOLL_TARGET static inline int32_t reduce_max(__m256i x) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(1, 0, 3, 2)));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(m);
}

ATOLL_TARGET static inline int32_t largest_bits_avx2(const float *values) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i even = _mm256_setzero_si256(), odd = even;
    for (int i = 0; i < ATOLL_BLOCK; i += 16) {
        _mm_prefetch((const char *)(values + i + PREFETCH_FLOATS), _MM_HINT_T0);
        __m256i a = _mm256_loadu_si256((const __m256i *)(values + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(values + i + 8));
        even = _mm256_max_epi32(even, _mm256_and_si256(a, magnitude));
        odd = _mm256_max_epi32(odd, _mm256_and_si256(b, magnitude));
    }
    return reduce_max(_mm256_max_epi32(even, odd));
}

ATOLL_TARGET static inline int encode_block_avx2(const float *values, uint8_t *data, int64_t block, int8_t *codes) {
    int32_t top = largest_bits_avx2(values);
    if (top >= ATOLL_INFINITY_BITS) return 0;
    uint32_t bits = atoll_scale_bits(atoll_float((uint32_t)top));
    atoll_put_scale(data, block, bits);
    /* A zero block multiplies by zero: x * 0 is a zero, and its code 0. */
    __m256 inverse = _mm256_set1_ps(bits ? 1.0f / atoll_float(bits << 16) : 0.0f);
    for (int i = 0; i < ATOLL_BLOCK; i += 32)
        _mm256_storeu_si256((__m256i *)(codes + i), codes_of(values + i, inverse));
    return 1;
}

ATOLL_TARGET static inline void accumulate_strip(const uint8_t *const *datas, const float *weights, int64_t k,
                                                 int64_t offset, int64_t block, float *out, int fresh) {
    __m256 sum[STRIP / 8];
    for (int i = 0; i < STRIP / 8; i++) sum[i] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(out + 8 * i);
    for (int64_t j = 0; j < k; j++) {
        __m256 factor = _mm256_set1_ps(atoll_scale_value(datas[j], block) * weights[j]);
        for (int i = 0; i < STRIP / 8; i++) {
            __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(datas[j] + offset + 8 * i)));
            sum[i] = _mm256_add_ps(sum[i], _mm256_mul_ps(factor, _mm256_cvtepi32_ps(wide)));
        }
    }
    for (int i = 0; i < STRIP / 8; i++) _mm256_storeu_ps(out + 8 * i, sum[i]);
}

ATOLL_TARGET static inline void accumulate_block_avx2(const uint8_t *const *datas, const float *weights, int64_t k,
                                                      int64_t offset, int64_t block, float *out, int fresh) {
    for (int i = 0; i < ATOLL_BLOCK; i += STRIP)
        accumulate_strip(datas, weights, k, offset + block * ATOLL_BLOCK + i, block, out + i, fresh);
}

#define ATOLL_ENCODE_BLOCK encode_block_avx2
#define ATOLL_ACCUMULATE_BLOCK accumulate_block_avx2
#include "portable.h"
#endif
