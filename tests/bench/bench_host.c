/* What the host gives in this second, so that other figures can be held against it: the rate of a pure read of BYTES bytes by one thread
 * and by THREADS (widest loads this CPU has, each thread its own contiguous part, no prefetch, which slows a pure read; huge pages where the
 * kernel gives them; the median of PASSES passes each), and how long a cache line takes from one core to another and back, halved. One line
 * of JSON.   bench_host [BYTES [THREADS [PASSES]]] */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "foundry/base/pool.h"

enum { MAX_THREADS = 1024, MAX_PASSES = 101, STEP = 512, HOPS = 2000, HOP_SAMPLES = 31 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* --- reading: each returns a sum, so that no load can be left out; n is a multiple of STEP --- */

static uint64_t read_plain(const uint8_t *p, size_t n) {
    const uint64_t *q = (const void *)p;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i < n / 8; i += 4) a += q[i], b += q[i + 1], c += q[i + 2], d += q[i + 3];
    return a + b + c + d;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t read_avx2(const uint8_t *p, size_t n) {
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (const uint8_t *end = p + n; p < end; p += 256) {
        const __m256i *v = (const void *)p;
        a = _mm256_add_epi64(a, _mm256_add_epi64(_mm256_load_si256(v), _mm256_load_si256(v + 1)));
        b = _mm256_add_epi64(b, _mm256_add_epi64(_mm256_load_si256(v + 2), _mm256_load_si256(v + 3)));
        c = _mm256_add_epi64(c, _mm256_add_epi64(_mm256_load_si256(v + 4), _mm256_load_si256(v + 5)));
        d = _mm256_add_epi64(d, _mm256_add_epi64(_mm256_load_si256(v + 6), _mm256_load_si256(v + 7)));
    }
    uint64_t s[4];
    _mm256_storeu_si256((void *)s, _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d)));
    return s[0] + s[1] + s[2] + s[3];
}

__attribute__((target("avx512f"))) static uint64_t read_avx512(const uint8_t *p, size_t n) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (const uint8_t *end = p + n; p < end; p += 512) {
        a = _mm512_add_epi64(a, _mm512_add_epi64(_mm512_load_si512(p), _mm512_load_si512(p + 64)));
        b = _mm512_add_epi64(b, _mm512_add_epi64(_mm512_load_si512(p + 128), _mm512_load_si512(p + 192)));
        c = _mm512_add_epi64(c, _mm512_add_epi64(_mm512_load_si512(p + 256), _mm512_load_si512(p + 320)));
        d = _mm512_add_epi64(d, _mm512_add_epi64(_mm512_load_si512(p + 384), _mm512_load_si512(p + 448)));
    }
    uint64_t s[8], sum = 0;
    _mm512_storeu_si512(s, _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d)));
    for (int i = 0; i < 8; i++) sum += s[i];
    return sum;
}
#endif

static uint64_t (*reader(const char **ret_name))(const uint8_t *, size_t) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return *ret_name = "avx512", read_avx512;
    if (__builtin_cpu_supports("avx2")) return *ret_name = "avx2", read_avx2;
#endif
    return *ret_name = "plain", read_plain;
}

/* --- threads that start together and spin: a pass of a small model takes a few milliseconds, a wake-up would be seen --- */

struct team {
    const uint8_t *p;
    size_t part; /* bytes of each */
    uint64_t (*read)(const uint8_t *, size_t);
    atomic_int pass, done; /* pass counts up: go; negative: end */
    atomic_ullong sum;
};

struct member {
    struct team *team;
    int index;
};

static void *work(void *arg) {
    struct member *m = arg;
    for (int seen = 0;;) {
        int pass = atomic_load_explicit(&m->team->pass, memory_order_acquire);
        if (pass < 0) return NULL;
        if (pass == seen) continue;
        seen = pass;
        atomic_fetch_add(&m->team->sum, m->team->read(m->team->p + m->team->part * (size_t)m->index, m->team->part));
        atomic_fetch_add_explicit(&m->team->done, 1, memory_order_release);
    }
}

/* GB/s of n_threads, the median of n_passes after one that warms up; 0 when threads cannot be had. */
static double read_rate(const uint8_t *p, size_t bytes, int n_threads, int n_passes) {
    static pthread_t threads[MAX_THREADS];
    static struct member members[MAX_THREADS];
    const char *name;
    struct team t = { .p = p, .part = bytes / (size_t)n_threads / STEP * STEP, .read = reader(&name) };
    double rate[MAX_PASSES];
    int n = 1;
    for (; n < n_threads; n++) {
        members[n] = (struct member){ &t, n };
        if (pthread_create(&threads[n], NULL, work, &members[n])) break;
    }
    bool all = n == n_threads;
    for (int i = -1; all && i < n_passes; i++) {
        double start = now();
        atomic_store(&t.done, 0);
        atomic_fetch_add(&t.pass, 1);
        atomic_fetch_add(&t.sum, t.read(p, t.part));
        while (atomic_load_explicit(&t.done, memory_order_acquire) < n_threads - 1) continue;
        if (i >= 0) rate[i] = (double)t.part * n_threads / (now() - start) * 1e-9;
    }
    atomic_store(&t.pass, -1);
    for (int i = 1; i < n; i++) pthread_join(threads[i], NULL);
    if (!all) return 0;
    qsort(rate, (size_t)n_passes, sizeof *rate, by_value);
    return rate[n_passes / 2];
}

/* --- the hop --- */

struct line {
    _Alignas(128) atomic_int turn; /* even: main's, odd: the other's; -1: end */
    int cpu;
};

static bool pin(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

static void *answer(void *arg) {
    struct line *l = arg;
    pin(l->cpu);
    for (;;) {
        int t = atomic_load_explicit(&l->turn, memory_order_acquire);
        if (t < 0) return NULL;
        if (t & 1) atomic_store_explicit(&l->turn, t + 1, memory_order_release);
    }
}

/* Nanoseconds from one core to the other: the least of samples, because others that run only make it longer. Negative: there are no two. */
static double hop_ns(void) {
    cpu_set_t all;
    static struct line l;
    int cpus[2], n = 0;
    if (sched_getaffinity(0, sizeof all, &all)) return -1;
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &all)) cpus[n++] = i;
    pthread_t other;
    l.cpu = cpus[n - 1];
    if (n < 2 || !pin(cpus[0]) || pthread_create(&other, NULL, answer, &l)) return -1;
    double best = 1e9;
    for (int s = 0; s < HOP_SAMPLES; s++) {
        double start = now();
        for (int i = 0; i < HOPS; i++) {
            int t = atomic_load_explicit(&l.turn, memory_order_relaxed);
            atomic_store_explicit(&l.turn, t + 1, memory_order_release);
            while (atomic_load_explicit(&l.turn, memory_order_acquire) != t + 2) continue;
        }
        double ns = (now() - start) / HOPS / 2 * 1e9;
        if (ns < best) best = ns;
    }
    atomic_store(&l.turn, -1);
    pthread_join(other, NULL);
    sched_setaffinity(0, sizeof all, &all);
    return best;
}

static bool number(const char *s, long long min, long long max, long long *ret) {
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (end == s || *end || errno || v < min || v > max) return false;
    *ret = v;
    return true;
}

int main(int argc, char **argv) {
    long long bytes = 256 << 20, n_threads = fo_cpu_count(), n_passes = 7;
    if (argc > 4 || (argc > 1 && !number(argv[1], 1 << 20, 1ll << 42, &bytes)) || (argc > 2 && !number(argv[2], 1, MAX_THREADS, &n_threads)) ||
        (argc > 3 && !number(argv[3], 1, MAX_PASSES, &n_passes))) {
        fprintf(stderr, "usage: bench_host [BYTES [THREADS [PASSES]]]\n");
        return 64;
    }
    uint8_t *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "bench_host: no memory for %lld bytes: %s\n", bytes, strerror(errno));
        return 1;
    }
    madvise(p, (size_t)bytes, MADV_HUGEPAGE); /* a wish */
    memset(p, 1, (size_t)bytes);
    double one = read_rate(p, (size_t)bytes, 1, (int)n_passes), many = n_threads > 1 ? read_rate(p, (size_t)bytes, (int)n_threads, (int)n_passes) : one;
    munmap(p, (size_t)bytes);
    if (many == 0) {
        fprintf(stderr, "bench_host: no %lld threads\n", n_threads);
        return 1;
    }
    double hop = hop_ns();
    const char *loads;
    reader(&loads);
    printf("{\"bytes\":%lld,\"threads\":%lld,\"cores\":%d,\"loads\":\"%s\",\"read_gb_s_1\":%.2f,\"read_gb_s\":%.2f,\"hop_ns\":", bytes, n_threads, fo_cpu_count(), loads, one, many);
    if (hop < 0) printf("null}\n");
    else printf("%.1f}\n", hop);
    return fflush(stdout) == 0 ? 0 : 1;
}
