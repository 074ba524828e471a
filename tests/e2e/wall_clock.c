/* A wall clock that is wrong, for the programs that preload this: the machine's, plus the whole seconds that the file
 * named by ATOLL_TEST_CLOCK holds, now and whenever it is changed. Monotonic clocks are left alone, and so are limits
 * that are waited for on the wall clock, as if the kernel had been told the wrong time as well. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *wrong_by_s;

static int64_t offset_s(void) {
    if (!wrong_by_s) {
        static const int64_t right = 0;
        const char *path = getenv("ATOLL_TEST_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        wrong_by_s = mapped == MAP_FAILED ? &right : mapped;
    }
    return *wrong_by_s;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset_s();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*original)(sem_t *, const struct timespec *);
    struct timespec limit = *until;
    if (!original) *(void **)&original = dlsym(RTLD_NEXT, "sem_timedwait");
    limit.tv_sec -= offset_s();
    return original(semaphore, &limit);
}
