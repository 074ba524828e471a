/* Plain C bodies of one variant, written so that compilers vectorise them. The including file defines
 * ATOLL_TARGET: the function attribute that selects instructions; ATOLL_VARIANT: name of the table; and may replace hot
 * loops over whole blocks: see block_codec.h. A new codec is one header, included here, and one line in the table. */
#include "atoll.h"

/* Bits of max|x| as an integer: orders like the floats do, and NaN or infinity comes out on top. */
ATOLL_TARGET static inline int32_t largest_bits(const float *values, int64_t n) {
    int32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)(atoll_bits(values[i]) & 0x7FFFFFFFu);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

#include "float32.h"
#include "float16.h"
#include "bfloat16.h"
#include "int8.h"
#include "int4.h"
#include "e3m0.h"
#include "stat2.h"
#include "selection.h"

static const atoll_codec *const codecs[] = {
    &float32_codec, &float16_codec, &bfloat16_codec, &int8_codec, &int4_codec, &e3m0_codec, &stat2_codec, NULL,
};

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

const atoll_variant ATOLL_VARIANT = {ATOLL_NAME, codecs, largest, nonzero_rows, nesterov, fill_normal};
