/* The kernels of a format that writes each value by itself: a template, included once per format and variant. Before, the
 * including header defines CODEC, CODEC_STRING, BYTES (per value), WRITE(value): its bits, and READ(bits): the value, not
 * finite if no encoder writes them. All names are undefined again at the end. */
#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define NAME(x) PASTE(CODEC, x)

/* The compiler turns these into plain loads and stores. */
ATOLL_TARGET static inline float NAME(get)(const uint8_t *data, int64_t i) {
    uint32_t bits = 0; /* little endian, wherever this runs */
    for (int byte = 0; byte < BYTES; byte++) bits |= (uint32_t)data[BYTES * i + byte] << 8 * byte;
    return READ(bits);
}

ATOLL_TARGET static inline void NAME(put)(uint32_t bits, uint8_t *data, int64_t i) {
    for (int byte = 0; byte < BYTES; byte++) data[BYTES * i + byte] = (uint8_t)(bits >> 8 * byte);
}

ATOLL_TARGET static inline int NAME(is_bad)(float value) {
    return (atoll_bits(value) & 0x7FFFFFFFu) >= ATOLL_INFINITY_BITS;
}

ATOLL_TARGET static int64_t NAME(check)(const uint8_t *data, int64_t n) {
    for (int64_t first = 0; first < n; first += 1024) {
        int64_t end = n - first < 1024 ? n : first + 1024;
        int bad = 0;
        for (int64_t i = first; i < end; i++) bad |= NAME(is_bad)(NAME(get)(data, i));
        for (int64_t i = first; bad; i++)
            if (NAME(is_bad)(NAME(get)(data, i))) return BYTES * i;
    }
    return -1;
}

ATOLL_TARGET static int64_t NAME(encode)(const float *values, int64_t n, uint8_t *data) {
    for (int64_t first = 0; first < n; first += 1024) {
        int64_t end = n - first < 1024 ? n : first + 1024;
        int bad = 0;
        for (int64_t i = first; i < end; i++) {
            uint32_t bits = WRITE(values[i]);
            bad |= NAME(is_bad)(READ(bits));
            NAME(put)(bits, data, i);
        }
        for (int64_t i = first; bad; i++)
            if (NAME(is_bad)(READ(WRITE(values[i])))) return i;
    }
    return -1;
}

ATOLL_TARGET static void NAME(decode)(const uint8_t *data, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = NAME(get)(data, i);
}

/* So few values of every contribution at a time that those of out stay in the first-level cache. */
ATOLL_TARGET static void NAME(accumulate)(const uint8_t *const *datas, const float *weights, int64_t k, int64_t n,
                                          float *out, int fresh) {
    for (int64_t first = 0; first < n; first += 1024) {
        int64_t m = n - first < 1024 ? n - first : 1024;
        if (fresh) memset(out + first, 0, (size_t)m * sizeof *out);
        for (int64_t j = 0; j < k; j++)
            for (int64_t i = first; i < first + m; i++) out[i] = out[i] + weights[j] * NAME(get)(datas[j], i);
    }
}

/* Lane i sums the products of values i, i + ATOLL_LANES, ... in that order; each product is exact. */
ATOLL_TARGET static void NAME(dots)(const uint8_t *data, const uint8_t *other, int64_t n, double *terms) {
    memset(terms, 0, (size_t)(n < ATOLL_LANES ? n : ATOLL_LANES) * sizeof *terms);
    for (int64_t first = 0; first < n; first += ATOLL_LANES) {
        int64_t m = n - first < ATOLL_LANES ? n - first : ATOLL_LANES;
        for (int64_t i = 0; i < m; i++)
            terms[i] = terms[i] + (double)NAME(get)(data, first + i) * (double)NAME(get)(other, first + i);
    }
}

static const atoll_codec NAME(codec) = {CODEC_STRING, NAME(encode), NAME(decode), NAME(accumulate), NAME(check), NAME(dots)};

#undef CODEC
#undef CODEC_STRING
#undef BYTES
#undef WRITE
#undef READ
#undef PASTE_
#undef PASTE
#undef NAME
