/* Which values or rows a sparse codec chooses. kernels/reference/selection.py. */

/* The kept-th largest of n magnitudes (31 bits each), 11 or 10 bits at a time; room: how many of those equal to it are among
 * the kept. Reorders the magnitudes. */
ATOLL_TARGET static uint32_t kth_largest(uint32_t *magnitudes, int64_t n, int64_t kept, int64_t *room) {
    uint32_t limit = 0;
    for (int shift = 20; shift >= 0; shift -= 10) {
        uint16_t counts[2][2048] = {{0}};
        for (int64_t i = 0; i + 1 < n; i += 2) { /* by turns, since equal neighbours would wait for each other */
            counts[0][magnitudes[i] >> shift & 2047]++;
            counts[1][magnitudes[i + 1] >> shift & 2047]++;
        }
        if (n % 2) counts[0][magnitudes[n - 1] >> shift & 2047]++;
        uint32_t digits = 2047;
        for (; kept > counts[0][digits] + counts[1][digits]; digits--) kept -= counts[0][digits] + counts[1][digits];
        int64_t num_left = 0;
        for (int64_t i = 0; i < n; i++) {
            uint32_t magnitude = magnitudes[i];
            magnitudes[num_left] = magnitude & ((1u << shift) - 1);
            num_left += (magnitude >> shift & 2047) == digits;
        }
        n = num_left;
        limit |= digits << shift;
    }
    *room = kept;
    return limit;
}

ATOLL_TARGET static void choose_largest(const float *values, int64_t n, int64_t kept, uint16_t *indices) {
    uint32_t magnitudes[ATOLL_GROUP];
    for (int64_t i = 0; i < n; i++) magnitudes[i] = atoll_bits(values[i]) & 0x7FFFFFFFu;
    int64_t room, num = 0;
    uint32_t limit = kth_largest(magnitudes, n, kept, &room);
    uint16_t chosen[ATOLL_GROUP + 1];
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = atoll_bits(values[i]) & 0x7FFFFFFFu;
        int equal = (magnitude == limit) & (room > 0);
        room -= equal;
        chosen[num] = (uint16_t)i;
        num += (magnitude > limit) | equal;
    }
    memcpy(indices, chosen, (size_t)kept * sizeof *indices);
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
