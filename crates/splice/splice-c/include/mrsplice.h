// mrsplice.h: data-stream splicing of TCP connections; mrsplice(7) tells how it is used.
//
// What comes on one connection is forwarded on another by splice(2), so that the program never has
// it in its memory. The words are those of "Kernel Support for Faster Web Proxies", section 3.
//
// Each function has a man page. They give 0 or more, or a negative error number of errno(3), which
// mrsplice_strerror puts into words; errno means nothing. One thread at a time uses a set.
#ifndef MRSPLICE_H
#define MRSPLICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

// A set of splices, with the pipes that they share and the descriptor that tells of them.
struct mrsplice;

// Flags of a request. Without the first one a splice is bidirectional: it forwards both ways, and
// the close of either connection too, and ends when both are closed.
enum {
  // From fd0, the source, to fd1, the destination. Close is not forwarded; the splice ends at the
  // limit or at the source's close. What comes from the destination is the application's.
  MRSPLICE_UNIDIRECTIONAL = 1,
  // Ends after `limit` bytes of payload. Unidirectional splices alone.
  MRSPLICE_LIMIT = 2,
  // The application reads the payload too, at the source. Unidirectional splices alone.
  MRSPLICE_KEEP_COPY = 4,
  // The end releases the splice: it is not to be unspliced.
  MRSPLICE_AUTO_RELEASE = 8,
};

// How a splice ended.
enum {
  MRSPLICE_END_NONE = 0,        // it had not: unspliced before
  MRSPLICE_END_LIMIT = 1,       // the payload limit was reached
  MRSPLICE_END_CLOSED = 2,      // the source closed, or both connections
  MRSPLICE_END_FD0_ABORTED = 3, // of a source: what had come from it was forwarded
  MRSPLICE_END_FD1_ABORTED = 4, // with KeepCopy the application got the whole payload all the same
  MRSPLICE_END_FAILED = 5,      // for want of memory or registrations
};

// What a notice tells.
enum {
  MRSPLICE_READABLE = 1, // KeepCopy: min2read bytes are kept, or no more will come before a read
  MRSPLICE_ENDED = 2,    // once for each splice that did not end in mrsplice_splice
};

// What went one way. Memory that it points to is the set's, and stays until the next call of
// mrsplice_splice, mrsplice_unsplice or mrsplice_free with that set. NULL where there is nothing.
struct mrsplice_direction {
  uint64_t forwarded;   // payload that the sink took, in bytes
  const void *unsent;   // taken from the source, not by the sink: to be sent by the application
  size_t unsent_bytes;
  size_t first_unsent;  // how many of these are of the request's first bytes, and no payload
  const void *kept;     // KeepCopy: not read yet; `unsent` is not in it
  size_t kept_bytes;
};

// What is left of a splice that was released.
struct mrsplice_released {
  int32_t end;   // MRSPLICE_END_*
  int32_t error; // of an abort or failure: a negative error number; else 0
  struct mrsplice_direction directions[2]; // from fd0 to fd1, from fd1 to fd0
};

// What to splice, and what came of it. Set all to 0 first: what is not said is 0 or NULL, and what
// is said without its flag is refused.
struct mrsplice_request {
  int32_t fd0;     // both are non-blocking TCP connections, ESTABLISHED or CLOSE_WAIT,
  int32_t fd1;     // and stay open until the splice is released
  uint32_t flags;  // MRSPLICE_UNIDIRECTIONAL and so on
  uint32_t unused; // 0
  uint64_t limit;  // with MRSPLICE_LIMIT: payload in bytes
  void *data;      // handed back in notices
  const void *first; // what fd1 is sent before anything else; not needed after the call
  size_t first_bytes;
  size_t min2read;   // with MRSPLICE_KEEP_COPY: bytes that make the source readable, 1 or more
  size_t max2cache;  // with MRSPLICE_KEEP_COPY: forwarded and not read at most, min2read or more
  void *input;       // with MRSPLICE_KEEP_COPY: filled with what is kept when the call returns
  size_t input_bytes;
  // Results.
  size_t input_filled;               // bytes put into `input`
  uint64_t splice;                   // a splice that goes on: its name
  struct mrsplice_released released; // one that ended in the call
};

// What happened to a splice.
struct mrsplice_notice {
  uint64_t splice;
  void *data;            // the request's
  uint32_t event;        // MRSPLICE_READABLE or MRSPLICE_ENDED
  int32_t end;           // of MRSPLICE_ENDED: MRSPLICE_END_*
  int32_t error;         // as in mrsplice_released
  uint32_t unused;
  uint64_t forwarded[2]; // of MRSPLICE_ENDED: payload in bytes, to fd1 and to fd0
};

// mrsplice_new(3): makes a set, which opens up to `pipes_max` pipes (0: 192).
int mrsplice_new(struct mrsplice **set, size_t pipes_max);
// Ends all splices of a set, whose connections stay open, and the set. NULL is allowed.
void mrsplice_free(struct mrsplice *set);
// A descriptor that is readable when mrsplice_turn has something to do. It is the set's.
int mrsplice_fd(const struct mrsplice *set);

// mrsplice_splice(3): begins a splice, sending `first` before anything else. 1: it ended in the
// call and is released; 0: it goes on.
int mrsplice_splice(struct mrsplice *set, struct mrsplice_request *request);
// mrsplice_turn(3): waits up to `wait_ms` (0: not at all; -1: for ever) for something to do, and
// moves what can be moved.
int mrsplice_turn(struct mrsplice *set, int wait_ms);
// The next notice. 1: there was one; 0: none.
int mrsplice_next(struct mrsplice *set, struct mrsplice_notice *notice);
// mrsplice_read(3): reads from side 0 (fd0) or 1 (fd1) of a splice where it allows that.
ssize_t mrsplice_read(struct mrsplice *set, uint64_t splice, int side, void *bytes, size_t max);
// Writes to side 0 or 1 of a splice where it allows that.
ssize_t mrsplice_write(struct mrsplice *set, uint64_t splice, int side, const void *bytes,
                       size_t count);
// mrsplice_unsplice(3): releases a splice, whether it has ended or not.
int mrsplice_unsplice(struct mrsplice *set, uint64_t splice, struct mrsplice_released *released);
// mrsplice_strerror(3): an error number in words, which stay until the thread's next call.
const char *mrsplice_strerror(int error);

// What libmrsplice.so.0 was built with; the library asserts the same of its side.
#if defined(__LP64__) && (defined(__cplusplus) || __STDC_VERSION__ >= 201112L)
#ifdef __cplusplus
#define MRSPLICE_ASSERT static_assert
#else
#define MRSPLICE_ASSERT _Static_assert
#endif
MRSPLICE_ASSERT(sizeof(struct mrsplice_direction) == 48, "mrsplice_direction has 48 bytes");
MRSPLICE_ASSERT(sizeof(struct mrsplice_released) == 104, "mrsplice_released has 104 bytes");
MRSPLICE_ASSERT(sizeof(struct mrsplice_request) == 200, "mrsplice_request has 200 bytes");
MRSPLICE_ASSERT(sizeof(struct mrsplice_notice) == 48, "mrsplice_notice has 48 bytes");
#undef MRSPLICE_ASSERT
#endif

#ifdef __cplusplus
}
#endif

#endif
