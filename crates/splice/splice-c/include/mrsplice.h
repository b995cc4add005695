// mrsplice.h: data-stream splicing of TCP connections. mrsplice(7) explains its use.
//
// The library forwards the bytes of one connection to another by splice(2), without copying them
// into the memory of the program. Terms are those of "Kernel Support for Faster Web Proxies",
// section 3.
//
// Each function has a man page. Functions return 0 or more, or a negative error number of errno(3);
// mrsplice_strerror describes it. They do not set errno. Only one thread at a time may use a set.
#ifndef MRSPLICE_H
#define MRSPLICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

// A set of splices, with the pipes that they share and a descriptor for poll(2).
struct mrsplice;

// Flags of a request. A splice without MRSPLICE_UNIDIRECTIONAL is bidirectional: it forwards both
// directions and the close of either connection, and ends when both connections are closed.
enum {
  // Forward only from fd0, the source, to fd1, the destination, and do not forward a close. The
  // splice ends at the limit or when the source closes. The application receives the data that the
  // destination sends.
  MRSPLICE_UNIDIRECTIONAL = 1,
  // End after `limit` bytes of payload. Only for unidirectional splices.
  MRSPLICE_LIMIT = 2,
  // Let the application read the payload too, at the source. Only for unidirectional splices.
  MRSPLICE_KEEP_COPY = 4,
  // Release the splice when it ends; mrsplice_unsplice is not needed.
  MRSPLICE_AUTO_RELEASE = 8,
};

// The reason why a splice ended.
enum {
  MRSPLICE_END_NONE = 0,        // it was unspliced before its end
  MRSPLICE_END_LIMIT = 1,       // the payload limit was reached
  MRSPLICE_END_CLOSED = 2,      // the source closed, or both connections of a bidirectional splice
  MRSPLICE_END_FD0_ABORTED = 3, // fd0 failed; if unidirectional, arrived payload was forwarded
  MRSPLICE_END_FD1_ABORTED = 4, // fd1 failed; with KeepCopy the application got the whole payload
  MRSPLICE_END_FAILED = 5,      // the kernel had no memory or no room for another epoll entry
};

// The events of a notice.
enum {
  MRSPLICE_READABLE = 1, // KeepCopy: min2read bytes can be read, or fewer if no more can arrive
  MRSPLICE_ENDED = 2,    // once for each splice that did not end within mrsplice_splice
};

// The bytes of one direction. The set owns the memory that the pointers refer to, until the next
// call of mrsplice_splice, mrsplice_unsplice or mrsplice_free for the set. A pointer to no bytes is
// NULL.
struct mrsplice_direction {
  uint64_t forwarded;   // bytes of payload that were sent to the sink
  const void *unsent;   // bytes that were not sent: the application has to send them
  size_t unsent_bytes;
  size_t prefix_unsent; // bytes at the start of `unsent` that belong to the prefix, not the payload
  const void *kept;     // KeepCopy: payload that was not read; `unsent` is not part of it
  size_t kept_bytes;
};

// The result of a splice that was released.
struct mrsplice_released {
  int32_t end;   // MRSPLICE_END_*
  int32_t error; // negative error number of an abort or failure, otherwise 0
  struct mrsplice_direction directions[2]; // from fd0 to fd1, from fd1 to fd0
};

// A request, and its results. Set all fields to 0 first. A field that is set without its flag is an
// error. Both connections are non-blocking TCP connections in ESTABLISHED or CLOSE_WAIT, and stay
// open until the splice is released.
struct mrsplice_request {
  int32_t fd0;       // with MRSPLICE_UNIDIRECTIONAL: the source
  int32_t fd1;       // with MRSPLICE_UNIDIRECTIONAL: the destination
  uint32_t flags;    // MRSPLICE_UNIDIRECTIONAL and so on
  uint32_t reserved; // 0
  uint64_t limit;    // MRSPLICE_LIMIT: bytes of payload
  void *user_data;   // returned in notices
  const void *prefix; // sent on fd1 before the payload; not needed after the call
  size_t prefix_bytes;
  size_t min2read;   // MRSPLICE_KEEP_COPY: bytes for MRSPLICE_READABLE, 1 or more
  size_t max2cache;  // MRSPLICE_KEEP_COPY: most bytes forwarded and not read, min2read or more
  void *input;       // MRSPLICE_KEEP_COPY: receives payload that was forwarded within the call
  size_t input_bytes;
  // Results.
  size_t input_filled;               // bytes written to `input`
  uint64_t splice;                   // result 0: the handle of the splice
  struct mrsplice_released released; // result 1: how the splice ended
};

// An event of a splice.
struct mrsplice_notice {
  uint64_t splice;
  void *user_data;       // from the request
  uint32_t event;        // MRSPLICE_READABLE or MRSPLICE_ENDED
  int32_t end;           // MRSPLICE_ENDED: MRSPLICE_END_*
  int32_t error;         // as in mrsplice_released
  uint32_t reserved;
  uint64_t forwarded[2]; // MRSPLICE_ENDED: bytes of payload sent to fd1, and to fd0
};

// mrsplice_new(3): create a set that opens up to `pipes_max` pipes (0: 192).
int mrsplice_new(struct mrsplice **set, size_t pipes_max);
// mrsplice_new(3): free a set and end its splices; their connections stay open. `set` may be NULL.
void mrsplice_free(struct mrsplice *set);
// mrsplice_new(3): return a descriptor that is readable when mrsplice_forward has work. The set
// owns it.
int mrsplice_fd(const struct mrsplice *set);

// mrsplice_splice(3): start a splice and send `prefix` first. Returns 1 if the splice ended within
// the call and is released, 0 if it continues.
int mrsplice_splice(struct mrsplice *set, struct mrsplice_request *request);
// mrsplice_forward(3): wait up to `wait_ms` (0: do not wait; -1: no limit) for work, then forward.
int mrsplice_forward(struct mrsplice *set, int wait_ms);
// mrsplice_forward(3): take the next notice. Returns 1 if there was one, otherwise 0.
int mrsplice_next_notice(struct mrsplice *set, struct mrsplice_notice *notice);
// mrsplice_read(3): read from side 0 (fd0) or 1 (fd1) of a splice that allows it.
ssize_t mrsplice_read(struct mrsplice *set, uint64_t splice, int side, void *bytes, size_t max);
// mrsplice_read(3): write to side 0 or 1 of a splice that allows it.
ssize_t mrsplice_write(struct mrsplice *set, uint64_t splice, int side, const void *bytes,
                       size_t count);
// mrsplice_unsplice(3): release a splice, ended or not.
int mrsplice_unsplice(struct mrsplice *set, uint64_t splice, struct mrsplice_released *released);
// mrsplice_strerror(3): describe an error number. The text is valid until the next call by the
// thread.
const char *mrsplice_strerror(int error);

// The sizes that libmrsplice.so.0 was built with. The library asserts the same sizes.
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
