/* The exported functions. Each takes the index of a variant, and runs it in the default floating-point mode whatever mode
 * the calling thread is in: some libraries switch a process to flushing subnormals when they are loaded. */
#include "atoll.h"

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#ifndef ATOLL_SOURCE_DIGEST
#define ATOLL_SOURCE_DIGEST ""
#endif

static const atoll_variant *const variants[] = {
    &atoll_baseline,
#ifdef ATOLL_X86
    &atoll_avx2,
    &atoll_avx512,
#endif
};

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned int fp_mode;
static fp_mode enter_default_mode(void) {
    fp_mode mode = _mm_getcsr();
    _mm_setcsr(0x1F80); /* nearest even, all exceptions masked, no flush to zero, subnormal inputs kept */
    return mode;
}
static void leave_default_mode(fp_mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__) && defined(__GNUC__)
typedef uint64_t fp_mode;
static fp_mode enter_default_mode(void) {
    fp_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"((fp_mode)0) : "memory");
    return mode;
}
static void leave_default_mode(fp_mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
typedef int fp_mode;
static fp_mode enter_default_mode(void) { return 0; }
static void leave_default_mode(fp_mode mode) { (void)mode; }
#endif

/* SHA-256 over the sources this was built from, as setup.py computes it. */
EXPORT const char *atoll_source_digest(void) { return ATOLL_SOURCE_DIGEST; }

/* Name of a variant that this build knows, NULL past the last. Later ones are faster. */
EXPORT const char *atoll_variant_name(int variant) {
    return variant >= 0 && variant < (int)(sizeof variants / sizeof *variants) ? variants[variant]->name : NULL;
}

/* Whether this processor can run the variant. */
EXPORT int atoll_variant_supported(int variant) {
#ifdef ATOLL_X86
    __builtin_cpu_init();
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
             __builtin_cpu_supports("fma");
    int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    if (variant == 1) return v3;
    if (variant == 2) return v4;
#endif
    return variant == 0;
}

/* Name of a codec, NULL past the last. */
EXPORT const char *atoll_codec_name(int codec) {
    int num = 0;
    while (atoll_baseline.codecs[num] != NULL) num++;
    return codec >= 0 && codec < num ? atoll_baseline.codecs[codec]->name : NULL;
}

EXPORT int64_t atoll_encode(int variant, int codec, const float *values, int64_t n, uint8_t *data) {
    fp_mode mode = enter_default_mode();
    int64_t first_bad = variants[variant]->codecs[codec]->encode(values, n, data);
    leave_default_mode(mode);
    return first_bad;
}

EXPORT void atoll_decode(int variant, int codec, const uint8_t *data, int64_t n, float *out) {
    fp_mode mode = enter_default_mode();
    variants[variant]->codecs[codec]->decode(data, n, out);
    leave_default_mode(mode);
}

EXPORT void atoll_accumulate(int variant, int codec, const uint8_t *const *datas, const float *weights, int64_t k,
                             int64_t n, float *out, int fresh) {
    fp_mode mode = enter_default_mode();
    variants[variant]->codecs[codec]->accumulate(datas, weights, k, n, out, fresh);
    leave_default_mode(mode);
}

EXPORT int64_t atoll_check(int variant, int codec, const uint8_t *data, int64_t n) {
    return variants[variant]->codecs[codec]->check(data, n);
}

EXPORT void atoll_dots(int variant, int codec, const uint8_t *data, const uint8_t *other, int64_t n, double *terms) {
    fp_mode mode = enter_default_mode();
    variants[variant]->codecs[codec]->dots(data, other, n, terms);
    leave_default_mode(mode);
}

EXPORT int64_t atoll_largest(int variant, const float *values, int64_t n, int64_t kept, uint16_t *indices) {
    return variants[variant]->largest(values, n, kept, indices);
}

EXPORT void atoll_nonzero_rows(int variant, const float *values, int64_t n, int64_t width, uint8_t *present) {
    variants[variant]->nonzero_rows(values, n, width, present);
}

EXPORT void atoll_nesterov_step(int variant, float *anchor, float *momentum, const float *mean, int64_t n, float lr,
                                float beta) {
    fp_mode mode = enter_default_mode();
    variants[variant]->nesterov(anchor, momentum, mean, n, lr, beta);
    leave_default_mode(mode);
}

EXPORT void atoll_fill_normal(int variant, float *out, int64_t n, uint64_t key, uint64_t start, float factor) {
    fp_mode mode = enter_default_mode();
    variants[variant]->fill_normal(out, n, key, start, factor);
    leave_default_mode(mode);
}
