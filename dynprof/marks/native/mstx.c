/* Marks from any native thread, for the windows and subscribers that take them.
 *
 * Marks and ended ranges go through a bounded queue with many writers and one reader, after Dmitry
 * Vyukov's: a writer claims a place by one exchange and never waits for another. Open ranges are in
 * a table, recorded or not, because a window may begin inside one of them. */

#define _GNU_SOURCE
#include "mstx/ms_tools_ext.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define USUAL_BYTES 156u   /* longest message or name in a trace */
#define MESSAGE_BYTES 255u /* longest message for a subscriber */
#define PLACES 16384u /* places in the queue; a power of two, like the other sizes */
#define RANGES 8192u  /* most open ranges */
#define TRIES 64u     /* places in the table that a range tries */
#define STRIDE 5063u  /* distance of consecutive ranges in the table; odd, so that places differ */
#define DOMAINS 1024u

/* Python reads this structure: see dynprof/marks/native/library.py. */
struct dynprof_mark {
    uint64_t began_ns; /* since the epoch */
    uint64_t ended_ns; /* equals began_ns for a moment; 0 for an open range */
    uint64_t range;    /* 0 for a moment */
    uint32_t thread;
    uint32_t domain;
    char message[MESSAGE_BYTES + 1];
};

struct mstxDomainRegistration_st {
    atomic_bool used;
    char name[USUAL_BYTES + 1];
};

struct place {
    atomic_uint_fast64_t turn;
    struct dynprof_mark mark;
};

enum { FREE, CHANGING }; /* states of a range; an open range's state is its id, which is greater */

struct open_range {
    atomic_uint_fast64_t state;
    struct dynprof_mark mark;
};

static struct place queue[PLACES];
static atomic_uint_fast64_t written, dropped;
static uint64_t read_so_far;
static struct open_range ranges[RANGES];
static atomic_uint_fast64_t begun;
static atomic_int listeners;
static atomic_uint longest = USUAL_BYTES;
static struct mstxDomainRegistration_st domains[DOMAINS];
static atomic_uint domains_known;
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local uint32_t thread_here;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint32_t this_thread(void) {
    if (!thread_here) thread_here = (uint32_t)syscall(SYS_gettid);
    return thread_here;
}

static size_t fitting(const char *text, size_t most) {
    size_t length = text ? strnlen(text, most + 1) : 0;
    return length <= most ? length : 0;
}

static void empty_queue(void) {
    for (uint64_t n = 0; n < PLACES; n++) atomic_store(&queue[n].turn, n);
    atomic_store(&written, 0);
    atomic_store(&dropped, 0);
    read_so_far = 0;
}

/* A child has none of its parent's threads or listeners. */
static void reset_in_child(void) {
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&naming, &unlocked, sizeof naming);
    atomic_store(&listeners, 0);
    atomic_store(&longest, USUAL_BYTES);
    thread_here = 0;
    empty_queue();
    for (uint32_t n = 0; n < RANGES; n++) atomic_store(&ranges[n].state, FREE);
}

__attribute__((constructor)) static void begin(void) {
    empty_queue();
    atomic_store(&domains[0].used, 1);
    strcpy(domains[0].name, "default");
    atomic_store(&domains_known, 1);
    pthread_atfork(NULL, NULL, reset_in_child);
}

static void put(const struct dynprof_mark *mark) {
    uint64_t claimed = atomic_load_explicit(&written, memory_order_relaxed);
    for (;;) {
        struct place *place = &queue[claimed % PLACES];
        uint64_t turn = atomic_load_explicit(&place->turn, memory_order_acquire);
        if (turn < claimed) {
            atomic_fetch_add(&dropped, 1);
            return;
        }
        if (turn > claimed) {
            claimed = atomic_load_explicit(&written, memory_order_relaxed);
        } else if (atomic_compare_exchange_weak(&written, &claimed, claimed + 1)) {
            place->mark = *mark;
            atomic_store_explicit(&place->turn, claimed + 1, memory_order_release);
            return;
        }
    }
}

static int fill(struct dynprof_mark *mark, mstxDomainHandle_t domain, const char *message) {
    size_t length = fitting(message, atomic_load_explicit(&longest, memory_order_relaxed));
    if (!domain) domain = &domains[0];
    if (!length || domain < domains || domain >= domains + DOMAINS) return 0;
    if (!atomic_load(&domain->used)) return 0;
    mark->began_ns = mark->ended_ns = now_ns();
    mark->range = 0;
    mark->thread = this_thread();
    mark->domain = (uint32_t)(domain - domains);
    memcpy(mark->message, message, length);
    mark->message[length] = 0;
    return 1;
}

EXPORT void mstxDomainMarkA(mstxDomainHandle_t domain, const char *message, aclrtStream stream) {
    struct dynprof_mark mark;
    (void)stream;
    if (atomic_load_explicit(&listeners, memory_order_relaxed) && fill(&mark, domain, message))
        put(&mark);
}

EXPORT void mstxMarkA(const char *message, aclrtStream stream) {
    mstxDomainMarkA(NULL, message, stream);
}

EXPORT mstxRangeId mstxDomainRangeStartA(mstxDomainHandle_t domain, const char *message,
                                         aclrtStream stream) {
    uint64_t number = atomic_fetch_add(&begun, 1) + 1;
    (void)stream;
    for (uint64_t n = 0; n < TRIES; n++) {
        uint64_t slot = (number * STRIDE + n) % RANGES, id = number * RANGES + slot;
        struct open_range *range = &ranges[slot];
        uint_fast64_t state = FREE;
        if (!atomic_compare_exchange_strong(&range->state, &state, CHANGING)) continue;
        if (!fill(&range->mark, domain, message)) id = FREE;
        range->mark.range = id;
        range->mark.ended_ns = 0;
        atomic_store(&range->state, id);
        return id;
    }
    atomic_fetch_add(&dropped, 1);
    return 0;
}

EXPORT mstxRangeId mstxRangeStartA(const char *message, aclrtStream stream) {
    return mstxDomainRangeStartA(NULL, message, stream);
}

EXPORT void mstxRangeEnd(mstxRangeId id) {
    struct open_range *range = &ranges[id % RANGES];
    uint_fast64_t state = id;
    if (id < RANGES || !atomic_compare_exchange_strong(&range->state, &state, CHANGING)) return;
    if (atomic_load_explicit(&listeners, memory_order_relaxed)) {
        range->mark.ended_ns = now_ns();
        put(&range->mark);
    }
    atomic_store(&range->state, FREE);
}

EXPORT void mstxDomainRangeEnd(mstxDomainHandle_t domain, mstxRangeId id) {
    (void)domain;
    mstxRangeEnd(id);
}

EXPORT mstxDomainHandle_t mstxDomainCreateA(const char *name) {
    size_t length = fitting(name, USUAL_BYTES);
    mstxDomainHandle_t found = NULL;
    if (!length) return NULL;
    pthread_mutex_lock(&naming);
    uint32_t known = atomic_load(&domains_known);
    for (uint32_t n = 0; n < known && !found; n++)
        if (!strcmp(domains[n].name, name)) found = &domains[n];
    if (!found && known < DOMAINS) {
        found = &domains[known];
        memcpy(found->name, name, length + 1);
        atomic_store(&domains_known, known + 1);
    }
    if (found) atomic_store(&found->used, 1);
    pthread_mutex_unlock(&naming);
    return found;
}

EXPORT void mstxDomainDestroy(mstxDomainHandle_t domain) {
    if (domain > domains && domain < domains + DOMAINS) atomic_store(&domain->used, 0);
}

/* The following functions are internal to dynprof, which calls them on one thread at a time. */

/* Set the number of listeners, and the longest message that any of them takes, in bytes. */
EXPORT void dynprof_mstx_listeners(int count, unsigned bytes) {
    if (bytes < USUAL_BYTES) bytes = USUAL_BYTES;
    atomic_store(&longest, bytes < MESSAGE_BYTES ? bytes : MESSAGE_BYTES);
    atomic_store(&listeners, count);
}

/* Return the number of marks dropped since the last call. */
EXPORT uint64_t dynprof_mstx_dropped(void) { return atomic_exchange(&dropped, 0); }

/* Return the name of a domain. */
EXPORT const char *dynprof_mstx_domain(uint32_t number) { return domains[number % DOMAINS].name; }

/* Take marks from the queue, the oldest first; return how many. */
EXPORT size_t dynprof_mstx_take(struct dynprof_mark *into, size_t most) {
    size_t taken = 0;
    while (taken < most) {
        struct place *place = &queue[read_so_far % PLACES];
        if (atomic_load_explicit(&place->turn, memory_order_acquire) != read_so_far + 1) break;
        into[taken++] = place->mark;
        atomic_store_explicit(&place->turn, read_so_far + PLACES, memory_order_release);
        read_so_far++;
    }
    return taken;
}

/* Copy the open ranges; return how many. */
EXPORT size_t dynprof_mstx_open(struct dynprof_mark *into, size_t most) {
    size_t found = 0;
    for (uint32_t n = 0; n < RANGES && found < most; n++) {
        uint64_t state = atomic_load(&ranges[n].state);
        if (state < RANGES) continue;
        into[found] = ranges[n].mark; /* kept only if no thread changed it during the copy */
        atomic_thread_fence(memory_order_acquire);
        found += atomic_load(&ranges[n].state) == state;
    }
    return found;
}
