/* Which values or rows a sparse codec chooses. kernels/reference/selection.py. */
#define ATOLL_FEW 48 /* magnitudes that are compared with each other rather than counted */

/* Indices of the flags (0 or 1) that are set, of which there are few; there is room for 8 more. Returns their number. */
ATOLL_TARGET static inline int64_t flagged(uint8_t *flags, int64_t n, uint16_t *indices) {
    int64_t num = 0;
    memset(flags + n, 0, 8);
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (int64_t first = 0; first < n; first += 8) {
        uint64_t left;
        memcpy(&left, flags + first, sizeof left);
        for (; left; left &= left - 1) indices[num++] = (uint16_t)(first + (__builtin_ctzll(left) >> 3));
    }
#else
    for (int64_t i = 0; i < n; i++) {
        indices[num] = (uint16_t)i;
        num += flags[i];
    }
#endif
    return num;
}

/* A magnitude that at least kept of those of a whole group reach: the least of so many columns' largest. */
ATOLL_TARGET static uint32_t lower_bound(const uint32_t *magnitudes, int64_t kept) {
    uint32_t largest[ATOLL_GROUP], least = UINT32_MAX;
    int64_t num_columns = 64;
    while (num_columns < kept) num_columns *= 2;
    memcpy(largest, magnitudes, (size_t)num_columns * sizeof *largest);
    for (int64_t first = num_columns; first < ATOLL_GROUP; first += num_columns)
        for (int64_t i = 0; i < num_columns; i++)
            largest[i] = magnitudes[first + i] > largest[i] ? magnitudes[first + i] : largest[i];
    for (int64_t i = 0; i < num_columns; i++) least = largest[i] < least ? largest[i] : least;
    return least;
}

/* The largest digits (11 bits) that kept of n magnitudes reach, by counting; kept becomes how many of those with just
 * these digits are among the kept. */
ATOLL_TARGET static uint32_t top_digits(const uint32_t *magnitudes, int64_t n, int shift, int64_t *kept) {
    uint16_t counts[2048] = {0};
    uint32_t digits = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t each = magnitudes[i] >> shift & 2047;
        counts[each]++;
        digits = each > digits ? each : digits;
    }
    for (; *kept > counts[digits]; digits--) *kept -= counts[digits];
    return digits;
}

/* Keeps those of n magnitudes that have these digits, without them; returns how many. */
ATOLL_TARGET static int64_t keep_digits(uint32_t *magnitudes, int64_t n, int shift, uint32_t digits) {
    int64_t num = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = magnitudes[i];
        magnitudes[num] = magnitude & ((1u << shift) - 1);
        num += (magnitude >> shift & 2047) == digits;
    }
    return num;
}

/* The kept-th largest of few magnitudes: the one that fewer are larger than, but not when those equal to it count too. */
ATOLL_TARGET static uint32_t kth_of_few(const uint32_t *magnitudes, int64_t n, int64_t *kept) {
    for (int64_t i = 0; i < n; i++) {
        int32_t larger = 0, equal = 0;
        for (int64_t j = 0; j < n; j++) {
            larger += magnitudes[j] > magnitudes[i];
            equal += magnitudes[j] == magnitudes[i];
        }
        if (larger >= *kept || *kept > larger + equal) continue;
        *kept -= larger;
        return magnitudes[i];
    }
    return 0; /* not reached: 1 <= kept <= n */
}

/* The kept-th largest of n magnitudes (31 bits each), 11 or 10 bits at a time; kept becomes how many of those equal to it
 * are among the kept. Overwrites the magnitudes. */
ATOLL_TARGET static uint32_t kth_largest(uint32_t *magnitudes, int64_t n, int64_t *kept) {
    uint32_t limit = 0;
    for (int shift = 20; shift >= 0; shift -= 10) {
        if (n <= ATOLL_FEW) return limit | kth_of_few(magnitudes, n, kept);
        uint32_t digits = top_digits(magnitudes, n, shift, kept);
        n = keep_digits(magnitudes, n, shift, digits);
        limit |= digits << shift;
    }
    return limit;
}

ATOLL_TARGET static void choose_largest(const float *values, int64_t n, int64_t kept, uint16_t *indices) {
    uint32_t magnitudes[ATOLL_GROUP], left[ATOLL_GROUP];
    uint8_t flags[ATOLL_GROUP + 8];
    uint16_t candidates[ATOLL_GROUP + 8];
    for (int64_t i = 0; i < n; i++) magnitudes[i] = atoll_bits(values[i]) & 0x7FFFFFFFu;
    uint32_t bound = n == ATOLL_GROUP ? lower_bound(magnitudes, kept) : 0;
    for (int64_t i = 0; i < n; i++) flags[i] = magnitudes[i] >= bound;
    int64_t num_candidates = flagged(flags, n, candidates), room = kept, num = 0;
    for (int64_t i = 0; i < num_candidates; i++) left[i] = magnitudes[candidates[i]];
    uint32_t limit = kth_largest(left, num_candidates, &room);
    for (int64_t i = 0; num < kept; i++) {
        uint32_t magnitude = magnitudes[candidates[i]];
        int equal = (magnitude == limit) & (room > 0); /* of equal ones, the first are chosen */
        room -= equal;
        indices[num] = candidates[i];
        num += (magnitude > limit) | equal;
    }
}

ATOLL_TARGET static int64_t largest(const float *values, int64_t n, int64_t kept, uint16_t *indices) {
    for (int64_t first = 0; first < n; first += ATOLL_GROUP, indices += kept) {
        int64_t m = n - first < ATOLL_GROUP ? n - first : ATOLL_GROUP;
        if (largest_bits(values + first, m) >= ATOLL_INFINITY_BITS)
            return first + atoll_first_non_finite(values + first, m);
        choose_largest(values + first, m, kept < m ? kept : m, indices);
    }
    return -1;
}

ATOLL_TARGET static void nonzero_rows(const float *values, int64_t n, int64_t width, uint8_t *present) {
    for (int64_t first = 0; first < n; first += width) {
        int64_t m = n - first < width ? n - first : width;
        uint32_t any = 0;
        for (int64_t i = 0; i < m; i++) any |= atoll_bits(values[first + i]) & 0x7FFFFFFFu;
        *present++ = any != 0;
    }
}
