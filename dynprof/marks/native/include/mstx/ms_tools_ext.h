/* Marks and ranges from C and C++, in the words of Ascend's mstx.
 *
 * Every function may be called on any thread, with or without Python's lock, and never waits: while
 * nothing takes marks a mark costs one load, and where the library is full it drops and counts.
 * Link with -lms_tools_ext; `dynprof mstx --path` prints the folder of the library. */

#ifndef DYNPROF_MS_TOOLS_EXT_H
#define DYNPROF_MS_TOOLS_EXT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *aclrtStream;
typedef uint64_t mstxRangeId;
typedef struct mstxDomainRegistration_st *mstxDomainHandle_t;

/* Messages and names have 1 to 156 bytes of UTF-8; messages have up to 255 while the process has a
 * subscriber (dynprof.mstx.subscribe). A stream may be NULL; marks are on the host's side in either
 * case. A domain that is NULL is the one called "default". */

/* Mark this moment. */
void mstxMarkA(const char *message, aclrtStream stream);
void mstxDomainMarkA(mstxDomainHandle_t domain, const char *message, aclrtStream stream);

/* Begin a range that any thread may end; 0 where that fails. */
mstxRangeId mstxRangeStartA(const char *message, aclrtStream stream);
mstxRangeId mstxDomainRangeStartA(mstxDomainHandle_t domain, const char *message,
                                  aclrtStream stream);

/* End a range; 0, and one that has ended, mean nothing. */
void mstxRangeEnd(mstxRangeId id);
void mstxDomainRangeEnd(mstxDomainHandle_t domain, mstxRangeId id);

/* Return the domain of a name, the same for the same name; NULL where that fails, as for a name that
 * cannot be taken and beyond 1,024 of them. It is never freed: what is marked in one that was
 * destroyed is left out. */
mstxDomainHandle_t mstxDomainCreateA(const char *name);
void mstxDomainDestroy(mstxDomainHandle_t domain);

#ifdef __cplusplus
}
#endif

#endif
