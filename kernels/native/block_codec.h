/* A block format's kernels in plain C: a template, included once per format and variant. kernels/formats.py describes the
 * layout. Before, the including header defines
 *
 *   CODEC          name;  CODEC_STRING: as text
 *   BITS, BLOCK, NUM_SCALES, MAX_SCALE_BITS, UNUSED (a code that no encoder writes, or -1)
 *   LEVEL(c)       level of a code, an int
 *   SELECT(c)      which scale it multiplies
 *   QUANTISE(values, m, scales, codes): bits of the scales (uint32_t) and a code per value, its high bits 0; 0 if a value is
 *                  not finite
 *
 * A variant may define ENCODE_BLOCK(values, scales, codes), which writes the bytes of a whole block's scales and codes, or
 * returns 0; ACCUMULATE_BLOCK(datas, weights, k, scales, codes, out, fresh), for the block whose scales and codes lie so
 * many bytes into each of datas; ATOLL_STREAM(target, source, num_bytes), which copies past the cache, and
 * ATOLL_STREAM_END, after which that is done. What is too large
 * to stay in the cache anyway is written so: a plain store would first read what it overwrites. All names but ATOLL_... are
 * undefined again at the end. */
#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define NAME(x) PASTE(CODEC, x)
#define SLOTS (8 / BITS)
#define MASK ((1 << BITS) - 1)
#define BLOCK_BYTES (BLOCK * BITS / 8)
#define SCALE_BYTES (2 * NUM_SCALES)

static inline int64_t NAME(num_blocks)(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

ATOLL_TARGET static int NAME(encode_block)(const float *values, int64_t m, uint8_t *scales, uint8_t *data) {
    uint32_t bits[NUM_SCALES];
    uint8_t codes[BLOCK + SLOTS];
    if (!QUANTISE(values, m, bits, codes)) return 0;
    for (int i = 0; i < NUM_SCALES; i++) atoll_put_scale(scales, i, bits[i]);
    int64_t num_bytes = (m * BITS + 7) / 8;
    memset(codes + m, 0, SLOTS);
    for (int64_t j = 0; j < num_bytes; j++) {
        unsigned byte = codes[j];
        for (int slot = 1; slot < SLOTS; slot++) byte |= (unsigned)codes[slot * num_bytes + j] << slot * BITS;
        data[j] = (uint8_t)byte;
    }
    return 1;
}

#ifndef ENCODE_BLOCK
#define ENCODE_BLOCK(values, scales, codes) NAME(encode_block)(values, BLOCK, scales, codes)
#endif

#ifdef ATOLL_STREAM
#define ENCODE_BATCH (4096 / BLOCK_BYTES)
#define DECODE_BATCH (2048 / BLOCK)

/* Encodes whole batches of blocks, each in the first-level cache and then past it; stops before a block that has a value
 * which is not finite. Returns the number of blocks done. */
ATOLL_TARGET static int64_t NAME(encode_streaming)(const float *values, int64_t num, uint8_t *data, uint8_t *codes) {
    uint8_t batch[ENCODE_BATCH * BLOCK_BYTES];
    int64_t block = 0, done = ENCODE_BATCH;
    for (; block + ENCODE_BATCH <= num && done == ENCODE_BATCH; block += done) {
        for (done = 0; done < ENCODE_BATCH; done++)
            if (!ENCODE_BLOCK(values + (block + done) * BLOCK, data + SCALE_BYTES * (block + done),
                              batch + done * BLOCK_BYTES))
                break;
        ATOLL_STREAM(codes + block * BLOCK_BYTES, batch, (size_t)(done * BLOCK_BYTES));
    }
    ATOLL_STREAM_END;
    return block;
}
#endif

ATOLL_TARGET static int64_t NAME(encode)(const float *values, int64_t n, uint8_t *data) {
    uint8_t *codes = data + SCALE_BYTES * NAME(num_blocks)(n);
    int64_t whole = n / BLOCK, rest = n % BLOCK, block = 0;
#ifdef ATOLL_STREAM
    if (n >= ATOLL_LARGE) block = NAME(encode_streaming)(values, whole, data, codes);
#endif
    for (; block < whole; block++)
        if (!ENCODE_BLOCK(values + block * BLOCK, data + SCALE_BYTES * block, codes + block * BLOCK_BYTES)) break;
    if (block == whole && (rest == 0 || NAME(encode_block)(values + block * BLOCK, rest, data + SCALE_BYTES * block,
                                                           codes + block * BLOCK_BYTES)))
        return -1;
    return block * BLOCK + atoll_first_non_finite(values + block * BLOCK, n - block * BLOCK);
}

ATOLL_TARGET static inline void NAME(add_block)(const uint8_t *codes, const float *factors, int64_t m, float *out) {
    int64_t num_bytes = (m * BITS + 7) / 8;
    for (int slot = 0; slot < SLOTS; slot++) {
        int64_t first = slot * num_bytes, num = m - first < num_bytes ? m - first : num_bytes;
        for (int64_t j = 0; j < num; j++) {
            int code = codes[j] >> slot * BITS & MASK;
            out[first + j] = out[first + j] + factors[SELECT(code)] * (float)LEVEL(code);
        }
    }
}

/* One block of every contribution, in order, while the block of out stays in the first-level cache. */
ATOLL_TARGET static inline void NAME(accumulate_block)(const uint8_t *const *datas, const float *weights, int64_t k,
                                                       int64_t scales, int64_t codes, int64_t m, float *out,
                                                       int fresh) {
    if (fresh) memset(out, 0, (size_t)m * sizeof *out);
    for (int64_t j = 0; j < k; j++) {
        float factors[NUM_SCALES];
        for (int i = 0; i < NUM_SCALES; i++) factors[i] = atoll_scale_value(datas[j] + scales, i) * weights[j];
        NAME(add_block)(datas[j] + codes, factors, m, out);
    }
}

#ifndef ACCUMULATE_BLOCK
#define ACCUMULATE_BLOCK(datas, weights, k, scales, codes, out, fresh) \
    NAME(accumulate_block)(datas, weights, k, scales, codes, BLOCK, out, fresh)
#endif

#ifdef ATOLL_STREAM
/* As encode_streaming, from +0. */
ATOLL_TARGET static int64_t NAME(accumulate_streaming)(const uint8_t *const *datas, const float *weights, int64_t k,
                                                       int64_t num, int64_t offset, float *out) {
    float batch[DECODE_BATCH * BLOCK];
    int64_t block = 0;
    for (; block + DECODE_BATCH <= num; block += DECODE_BATCH) {
        for (int64_t i = block; i < block + DECODE_BATCH; i++)
            ACCUMULATE_BLOCK(datas, weights, k, SCALE_BYTES * i, offset + i * BLOCK_BYTES, batch + (i - block) * BLOCK, 1);
        ATOLL_STREAM((uint8_t *)(out + block * BLOCK), (const uint8_t *)batch, sizeof batch);
    }
    ATOLL_STREAM_END;
    return block;
}
#endif

ATOLL_TARGET static void NAME(accumulate)(const uint8_t *const *datas, const float *weights, int64_t k, int64_t n,
                                          float *out, int fresh) {
    int64_t offset = SCALE_BYTES * NAME(num_blocks)(n), whole = n / BLOCK, rest = n % BLOCK, block = 0;
#ifdef ATOLL_STREAM
    if (fresh && n >= ATOLL_LARGE) block = NAME(accumulate_streaming)(datas, weights, k, whole, offset, out);
#endif
    for (; block < whole; block++)
        ACCUMULATE_BLOCK(datas, weights, k, SCALE_BYTES * block, offset + block * BLOCK_BYTES, out + block * BLOCK, fresh);
    if (rest)
        NAME(accumulate_block)(datas, weights, k, SCALE_BYTES * whole, offset + whole * BLOCK_BYTES, rest,
                               out + whole * BLOCK, fresh);
}

ATOLL_TARGET static void NAME(decode)(const uint8_t *data, int64_t n, float *out) {
    const float one = 1.0f;
    NAME(accumulate)(&data, &one, 1, n, out, 1);
}

/* Whether byte j of a block of m values is one that no encoder writes. */
ATOLL_TARGET static inline int NAME(is_bad)(int byte, int64_t j, int64_t m, int64_t num_bytes, int is_zero_block) {
    int bad = is_zero_block & (byte != 0);
    for (int slot = 0; slot < SLOTS; slot++) {
        int code = byte >> slot * BITS & MASK;
        bad |= (code == UNUSED) | ((slot * num_bytes + j >= m) & (code != 0));
    }
    return bad;
}

ATOLL_TARGET static int64_t NAME(check_codes)(const uint8_t *codes, int64_t m, int is_zero_block) {
    int64_t num_bytes = (m * BITS + 7) / 8;
    int bad = 0;
    if (m == BLOCK && !is_zero_block) /* the usual case, of constants, for the compiler */
        for (int64_t j = 0; j < BLOCK_BYTES; j++) bad |= NAME(is_bad)(codes[j], j, BLOCK, BLOCK_BYTES, 0);
    else
        for (int64_t j = 0; j < num_bytes; j++) bad |= NAME(is_bad)(codes[j], j, m, num_bytes, is_zero_block);
    if (!bad) return -1;
    for (int64_t j = 0;; j++)
        if (NAME(is_bad)(codes[j], j, m, num_bytes, is_zero_block)) return j;
}

ATOLL_TARGET static int64_t NAME(check)(const uint8_t *data, int64_t n) {
    int64_t num_scales = NUM_SCALES * NAME(num_blocks)(n);
    for (int64_t i = 0; i < num_scales; i++) {
        uint32_t bits = atoll_get_scale(data, i), below = i % NUM_SCALES ? atoll_get_scale(data, i - 1) : 0;
        if (bits < below || (bits != 0 && (bits < ATOLL_MIN_SCALE_BITS || bits > MAX_SCALE_BITS))) return 2 * i;
    }
    for (int64_t block = 0, first = 0; first < n; block++, first += BLOCK) {
        int64_t codes = 2 * num_scales + block * BLOCK_BYTES;
        int is_zero_block = atoll_get_scale(data, NUM_SCALES * block + NUM_SCALES - 1) == 0;
        int64_t bad = NAME(check_codes)(data + codes, n - first < BLOCK ? n - first : BLOCK, is_zero_block);
        if (bad >= 0) return codes + bad;
    }
    return -1;
}

/* The sum of the products of levels whose scales are row and column: exact, below 2^24. */
ATOLL_TARGET static inline int32_t NAME(dot_levels)(const uint8_t *codes, const uint8_t *others, int64_t m, int row,
                                                    int column) {
    int64_t num_bytes = (m * BITS + 7) / 8;
    int32_t sum = 0;
    for (int slot = 0; slot < SLOTS; slot++) {
        int64_t first = slot * num_bytes, num = m - first < num_bytes ? m - first : num_bytes;
        for (int64_t j = 0; j < num; j++) {
            int code = codes[j] >> slot * BITS & MASK, other = others[j] >> slot * BITS & MASK;
            int32_t product = (int32_t)LEVEL(code) * (int32_t)LEVEL(other);
            sum += (SELECT(code) == row) & (SELECT(other) == column) ? product : 0;
        }
    }
    return sum;
}

/* Inner products of every block, exactly: the levels' part is a small integer, a scale has 8 significant bits. */
ATOLL_TARGET static void NAME(dots)(const uint8_t *data, const uint8_t *other, int64_t n, double *terms) {
    int64_t offset = SCALE_BYTES * NAME(num_blocks)(n);
    for (int64_t block = 0, first = 0; first < n; block++, first += BLOCK) {
        int64_t m = n - first < BLOCK ? n - first : BLOCK, codes = offset + block * BLOCK_BYTES;
        for (int i = 0; i < NUM_SCALES * NUM_SCALES; i++) {
            int row = i / NUM_SCALES, column = i % NUM_SCALES;
            int32_t sum = m == BLOCK ? NAME(dot_levels)(data + codes, other + codes, BLOCK, row, column)
                                     : NAME(dot_levels)(data + codes, other + codes, m, row, column);
            double scales = (double)atoll_scale_value(data, NUM_SCALES * block + row) *
                            (double)atoll_scale_value(other, NUM_SCALES * block + column);
            terms[block * NUM_SCALES * NUM_SCALES + i] = scales * (double)sum;
        }
    }
}

static const atoll_codec NAME(codec) = {CODEC_STRING, NAME(encode), NAME(decode), NAME(accumulate), NAME(check), NAME(dots)};

#undef CODEC
#undef CODEC_STRING
#undef BITS
#undef BLOCK
#undef NUM_SCALES
#undef MAX_SCALE_BITS
#undef UNUSED
#undef LEVEL
#undef SELECT
#undef QUANTISE
#undef ENCODE_BLOCK
#undef ACCUMULATE_BLOCK
#undef PASTE_
#undef PASTE
#undef NAME
#undef SLOTS
#undef MASK
#undef BLOCK_BYTES
#undef SCALE_BYTES
#undef ENCODE_BATCH
#undef DECODE_BATCH
