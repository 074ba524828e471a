/* Plain C bodies of one variant, written so that compilers vectorise them. The including file defines
 * ATOLL_TARGET: the function attribute that selects instructions; ATOLL_VARIANT: name of the table;
 * and may replace the hot loops: ATOLL_ENCODE_BLOCK, ATOLL_ACCUMULATE_BLOCK (whole blocks of 256 only). */
#include "atoll.h"

/* Bits of max|x| as an integer: orders like the floats do, and NaN or infinity comes out on top. */
ATOLL_TARGET static int32_t largest_bits(const float *values, int64_t n) {
    int32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)(atoll_bits(values[i]) & 0x7FFFFFFFu);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

ATOLL_TARGET static void write_codes(const float *values, int64_t n, float inverse, int8_t *codes) {
    for (int64_t i = 0; i < n; i++) {
        /* |values * inverse| < 127.5 (int8.py), hence no clamp. */
        codes[i] = (int8_t)(atoll_bits(values[i] * inverse + ATOLL_ROUNDER) & 0xFFu);
    }
}

/* Returns 0 if the block holds a non-finite value. */
ATOLL_TARGET static int encode_block(const float *values, int64_t n, uint8_t *data, int64_t block, int8_t *codes) {
    int32_t largest = largest_bits(values, n);
    if (largest >= ATOLL_INFINITY_BITS) return 0;
    uint32_t bits = atoll_scale_bits(atoll_float((uint32_t)largest));
    atoll_put_scale(data, block, bits);
    if (bits == 0)
        memset(codes, 0, (size_t)n);
    else
        write_codes(values, n, 1.0f / atoll_float(bits << 16), codes);
    return 1;
}

#ifndef ATOLL_ENCODE_BLOCK
#define ATOLL_ENCODE_BLOCK(values, data, block, codes) encode_block(values, ATOLL_BLOCK, data, block, codes)
#endif

ATOLL_TARGET static int64_t encode(const float *values, int64_t n, uint8_t *data) {
    int8_t *codes = (int8_t *)data + 2 * atoll_num_blocks(n);
    int64_t whole = n / ATOLL_BLOCK, rest = n % ATOLL_BLOCK, block = 0;
    for (; block < whole; block++)
        if (!ATOLL_ENCODE_BLOCK(values + block * ATOLL_BLOCK, data, block, codes + block * ATOLL_BLOCK)) break;
    if (block == whole && (rest == 0 || encode_block(values + block * ATOLL_BLOCK, rest, data, block,
                                                     codes + block * ATOLL_BLOCK)))
        return -1;
    return block * ATOLL_BLOCK + atoll_first_non_finite(values + block * ATOLL_BLOCK, n - block * ATOLL_BLOCK);
}

ATOLL_TARGET static void decode_block(const int8_t *codes, int64_t n, float scale, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = scale * (float)codes[i];
}

ATOLL_TARGET static void decode(const uint8_t *data, int64_t n, float *out) {
    const int8_t *codes = (const int8_t *)data + 2 * atoll_num_blocks(n);
    int64_t whole = n / ATOLL_BLOCK, rest = n % ATOLL_BLOCK;
    for (int64_t block = 0; block < whole; block++)
        decode_block(codes + block * ATOLL_BLOCK, ATOLL_BLOCK, atoll_scale_value(data, block), out + block * ATOLL_BLOCK);
    if (rest)
        decode_block(codes + whole * ATOLL_BLOCK, rest, atoll_scale_value(data, whole), out + whole * ATOLL_BLOCK);
}

ATOLL_TARGET static void add_block(const int8_t *codes, int64_t n, float factor, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = out[i] + factor * (float)codes[i];
}

/* One block of every contribution, in order, while the block of out stays in the first-level cache. */
ATOLL_TARGET static void accumulate_block(const uint8_t *const *datas, const float *weights, int64_t k, int64_t offset,
                                          int64_t block, int64_t n, float *out, int fresh) {
    if (fresh) memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t j = 0; j < k; j++) {
        const int8_t *codes = (const int8_t *)datas[j] + offset + block * ATOLL_BLOCK;
        add_block(codes, n, atoll_scale_value(datas[j], block) * weights[j], out);
    }
}

#ifndef ATOLL_ACCUMULATE_BLOCK
#define ATOLL_ACCUMULATE_BLOCK(datas, weights, k, offset, block, out, fresh) \
    accumulate_block(datas, weights, k, offset, block, ATOLL_BLOCK, out, fresh)
#endif

ATOLL_TARGET static void accumulate(const uint8_t *const *datas, const float *weights, int64_t k, int64_t n, float *out,
                                    int fresh) {
    int64_t offset = 2 * atoll_num_blocks(n), whole = n / ATOLL_BLOCK, rest = n % ATOLL_BLOCK;
    for (int64_t block = 0; block < whole; block++)
        ATOLL_ACCUMULATE_BLOCK(datas, weights, k, offset, block, out + block * ATOLL_BLOCK, fresh);
    if (rest) accumulate_block(datas, weights, k, offset, whole, rest, out + whole * ATOLL_BLOCK, fresh);
}

/* Index of the first code in a block that no encoder writes, or -1. */
ATOLL_TARGET static int64_t check_codes(const int8_t *codes, int64_t n, int is_zero_block) {
    int bad = 0;
    for (int64_t i = 0; i < n; i++) bad |= is_zero_block ? codes[i] != 0 : codes[i] == -128;
    if (!bad) return -1;
    for (int64_t i = 0;; i++)
        if (is_zero_block ? codes[i] != 0 : codes[i] == -128) return i;
}

ATOLL_TARGET static int64_t check(const uint8_t *data, int64_t n) {
    int64_t num_blocks = atoll_num_blocks(n), offset = 2 * num_blocks;
    for (int64_t block = 0; block < num_blocks; block++) {
        uint32_t bits = atoll_get_scale(data, block);
        if (bits != 0 && (bits < ATOLL_MIN_SCALE_BITS || bits > ATOLL_MAX_SCALE_BITS)) return 2 * block;
    }
    for (int64_t block = 0; block < num_blocks; block++) {
        int64_t first = block * ATOLL_BLOCK, size = n - first < ATOLL_BLOCK ? n - first : ATOLL_BLOCK;
        int64_t bad = check_codes((const int8_t *)data + offset + first, size, atoll_get_scale(data, block) == 0);
        if (bad >= 0) return offset + first + bad;
    }
    return -1;
}

/* Inner product of every block, exactly: the codes' part is an integer below 2^23, a scale has 8 significant bits. */
ATOLL_TARGET static void dots(const uint8_t *data, const uint8_t *other, int64_t n, double *terms) {
    int64_t num_blocks = atoll_num_blocks(n), offset = 2 * num_blocks;
    for (int64_t block = 0; block < num_blocks; block++) {
        int64_t first = block * ATOLL_BLOCK, size = n - first < ATOLL_BLOCK ? n - first : ATOLL_BLOCK;
        const int8_t *codes = (const int8_t *)data + offset + first;
        const int8_t *others = (const int8_t *)other + offset + first;
        int32_t sum = 0;
        for (int64_t i = 0; i < size; i++) sum += (int32_t)codes[i] * others[i];
        double scales = (double)atoll_scale_value(data, block) * (double)atoll_scale_value(other, block);
        terms[block] = scales * (double)sum;
    }
}

ATOLL_TARGET static void nesterov(float *restrict anchor, float *restrict momentum, const float *restrict mean,
                                  int64_t n, float lr, float beta) {
    for (int64_t i = 0; i < n; i++) {
        float m = beta * momentum[i] + mean[i];
        momentum[i] = m;
        anchor[i] = anchor[i] - lr * (mean[i] + beta * m);
    }
}

/* splitmix64 (Steele, Lea, Flood 2014), output number counter; the sum of its quarters, centred. */
ATOLL_TARGET static void fill_normal(float *out, int64_t n, uint64_t key, uint64_t start, float factor) {
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = key + (start + (uint64_t)i + 1) * 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        int32_t sum = (int32_t)((z & 0xFFFF) + (z >> 16 & 0xFFFF) + (z >> 32 & 0xFFFF) + (z >> 48));
        out[i] = (float)(sum - 131070) * factor;
    }
}

const atoll_variant ATOLL_VARIANT = {ATOLL_NAME, encode, decode, accumulate, check, dots, nesterov, fill_normal};
