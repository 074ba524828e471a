/* x86-64-v4. The block of 256 values is 16 registers, so that encoding reads it once, and summing writes it once. */
#include "atoll.h"
#ifdef ATOLL_X86
#include <immintrin.h>

#define ATOLL_NAME "avx512"
#define ATOLL_VARIANT atoll_avx512
#define ATOLL_TARGET __attribute__((target("arch=x86-64-v4")))
#define NUM_VECTORS (ATOLL_BLOCK / 16)
#define PREFETCH_FLOATS 1024 /* 4 KiB ahead: the hardware's own prefetching stops at every page */

/* Four vectors of 16 scaled values -> 64 codes. The packs interleave lanes of 128 bits; the permutation undoes it. */
ATOLL_TARGET static inline __m512i codes_of(const __m512 *values, __m512 inverse, __m512i order) {
    __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(values[0], inverse));
    __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(values[1], inverse));
    __m512i c = _mm512_cvtps_epi32(_mm512_mul_ps(values[2], inverse));
    __m512i d = _mm512_cvtps_epi32(_mm512_mul_ps(values[3], inverse));
    __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    return _mm512_permutexvar_epi32(order, packed);
}

ATOLL_TARGET static inline int encode_block_avx512(const float *values, uint8_t *data, int64_t block, int8_t *codes) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    __m512 x[NUM_VECTORS];
    __m512i largest = _mm512_setzero_si512();
    for (int i = 0; i < NUM_VECTORS; i++) {
        _mm_prefetch((const char *)(values + 16 * i + PREFETCH_FLOATS), _MM_HINT_T0);
        x[i] = _mm512_loadu_ps(values + 16 * i);
        largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_castps_si512(x[i]), magnitude));
    }
    int32_t top = _mm512_reduce_max_epi32(largest);
    if (top >= ATOLL_INFINITY_BITS) return 0;
    uint32_t bits = atoll_scale_bits(atoll_float((uint32_t)top));
    atoll_put_scale(data, block, bits);
    /* A zero block multiplies by zero: x * 0 is a zero, and its code 0. */
    __m512 inverse = _mm512_set1_ps(bits ? 1.0f / atoll_float(bits << 16) : 0.0f);
    for (int i = 0; i < NUM_VECTORS; i += 4)
        _mm512_storeu_si512(codes + 16 * i, codes_of(x + i, inverse, order));
    return 1;
}

ATOLL_TARGET static inline void accumulate_block_avx512(const uint8_t *const *datas, const float *weights, int64_t k,
                                                        int64_t offset, int64_t block, float *out, int fresh) {
    __m512 sum[NUM_VECTORS];
    for (int i = 0; i < NUM_VECTORS; i++) sum[i] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(out + 16 * i);
    for (int64_t j = 0; j < k; j++) {
        const uint8_t *codes = datas[j] + offset + block * ATOLL_BLOCK;
        __m512 factor = _mm512_set1_ps(atoll_scale_value(datas[j], block) * weights[j]);
        for (int i = 0; i < NUM_VECTORS; i++) {
            __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(codes + 16 * i)));
            sum[i] = _mm512_add_ps(sum[i], _mm512_mul_ps(factor, _mm512_cvtepi32_ps(wide)));
        }
    }
    for (int i = 0; i < NUM_VECTORS; i++) _mm512_storeu_ps(out + 16 * i, sum[i]);
}

#define ATOLL_ENCODE_BLOCK encode_block_avx512
#define ATOLL_ACCUMULATE_BLOCK accumulate_block_avx512
#include "portable.h"
#endif
