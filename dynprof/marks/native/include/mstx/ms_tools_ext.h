/* Marks and ranges from C and C++, under the names of Ascend's mstx.
 *
 * Every function may be called on any thread, with or without the GIL, and never waits. While
 * nothing records marks, a mark costs one load. A full library drops marks and counts them.
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
 * subscriber (dynprof.mstx.subscribe). A stream may be NULL; marks are on the host's track in any
 * case. A NULL domain means the domain "default". */

/* Mark this moment. */
void mstxMarkA(const char *message, aclrtStream stream);
void mstxDomainMarkA(mstxDomainHandle_t domain, const char *message, aclrtStream stream);

/* Begin a range that any thread may end; return 0 where that fails. */
mstxRangeId mstxRangeStartA(const char *message, aclrtStream stream);
mstxRangeId mstxDomainRangeStartA(mstxDomainHandle_t domain, const char *message,
                                  aclrtStream stream);

/* End a range; does nothing for 0 or for an ended range. */
void mstxRangeEnd(mstxRangeId id);
void mstxDomainRangeEnd(mstxDomainHandle_t domain, mstxRangeId id);

/* Return the domain of a name, the same for the same name. Return NULL where that fails, as for an
 * invalid name and beyond 1,024 domains. A domain is never freed; marks in a destroyed domain are
 * left out. */
mstxDomainHandle_t mstxDomainCreateA(const char *name);
void mstxDomainDestroy(mstxDomainHandle_t domain);

#ifdef __cplusplus
}
#endif

#endif
