/* Makes opens of files fail, by the rules in TFPIPE_FAULTS (tests/support/faults.py): for LD_PRELOAD.

   A rule is KIND:MS:PATTERN or KIND:MS:PATTERN:w, several are separated by ";". KIND is the errno of the failure, HANG or
   FULL. For MS milliseconds (0: forever) from the first open of this process that a rule is about, it holds for each
   open for reading (w: for writing or creating) of a path that matches PATTERN. The folder TFPIPE_FAULTS_MET gets a file
   named by its process number from each process that has met a fault. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { NONE = 0, HANG = -1, FULL = -2, RULES = 16 };

static _Atomic long began_ms[RULES];

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Returns whether rule `number`, which lasts `ms`, is in force; its time begins with the first call. */
static int lasts(int number, long ms) {
    long unset = 0;
    __atomic_compare_exchange_n(&began_ms[number], &unset, now_ms(), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return ms == 0 || now_ms() - began_ms[number] < ms;
}

static void tell(void) {
    int (*open_file)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    const char *folder = getenv("TFPIPE_FAULTS_MET");
    char path[4096];
    if (folder == NULL || snprintf(path, sizeof path, "%s/%d", folder, getpid()) >= (int)sizeof path) return;
    int file = open_file(path, O_WRONLY | O_CREAT, 0644);
    if (file >= 0) close(file);
}

/* Returns the errno to fail with, FULL, or NONE; does not return while a rule says HANG. */
static int fault(const char *path, int writes) {
    const char *rules = getenv("TFPIPE_FAULTS");
    char copy[4096], *rest = copy, *rule;
    if (rules == NULL || path == NULL || strlen(rules) >= sizeof copy) return NONE;
    strcpy(copy, rules);
    for (int number = 0; number < RULES && (rule = strsep(&rest, ";")) != NULL; number++) {
        const char *kind = strsep(&rule, ":"), *ms = strsep(&rule, ":"), *pattern = strsep(&rule, ":");
        if (pattern == NULL || (rule != NULL) != writes || fnmatch(pattern, path, 0) != 0) continue;
        if (!lasts(number, atol(ms))) continue;
        tell();
        if (atoi(kind) != HANG) return atoi(kind);
        while (lasts(number, atol(ms))) usleep(10000);
    }
    return NONE;
}

/* Makes the file at `path`, as on a full disk that has room for its name, and returns what to open in its place. */
static const char *full(int (*open_at)(int, const char *, int, ...), int folder, const char *path, int flags) {
    int made = open_at(folder, path, flags, 0644);
    if (made >= 0) close(made);
    return "/dev/full";
}

static int opened(const char *name, int folder, const char *path, int flags, mode_t mode) {
    int (*open_at)(int, const char *, int, ...) = dlsym(RTLD_NEXT, name);
    int failure = fault(path, (flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT);
    if (failure == FULL) {
        path = full(open_at, folder, path, flags);
        flags &= O_ACCMODE | O_CLOEXEC;
    } else if (failure != NONE) {
        errno = failure;
        return -1;
    }
    return open_at(folder, path, flags, mode);
}

static FILE *fopened(const char *name, const char *path, const char *mode) {
    FILE *(*open_file)(const char *, const char *) = dlsym(RTLD_NEXT, name);
    int failure = fault(path, strpbrk(mode, "wa+") != NULL);
    if (failure == FULL) {
        path = full(dlsym(RTLD_NEXT, "openat"), AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC);
    } else if (failure != NONE) {
        errno = failure;
        return NULL;
    }
    return open_file(path, mode);
}

#define MODE                                                   \
    mode_t mode = 0;                                           \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list more;                                          \
        va_start(more, flags);                                 \
        mode = va_arg(more, mode_t);                           \
        va_end(more);                                          \
    }

int open(const char *path, int flags, ...) { MODE return opened("openat", AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened("openat64", AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE return opened("openat", folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) {
    MODE return opened("openat64", folder, path, flags, mode);
}
FILE *fopen(const char *path, const char *mode) { return fopened("fopen", path, mode); }
FILE *fopen64(const char *path, const char *mode) { return fopened("fopen64", path, mode); }

static long ahead_s(void) {
    const char *seconds = getenv("TFPIPE_CLOCK_AHEAD_S");
    return seconds == NULL ? 0 : atol(seconds);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*get)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failure = get(clock, now);
    if (failure == 0 && clock == CLOCK_REALTIME) now->tv_sec += ahead_s();
    return failure;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int (*get)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int failure = get(now, zone);
    if (failure == 0) now->tv_sec += ahead_s();
    return failure;
}

time_t time(time_t *now) {
    time_t (*get)(time_t *) = dlsym(RTLD_NEXT, "time");
    time_t seconds = get(NULL) + ahead_s();
    if (now != NULL) *now = seconds;
    return seconds;
}
