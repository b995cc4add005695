// iolite.h: immutable buffers that processes share without copying. iolite(7) explains their use.
//
// Bytes are written once, into a buffer, and then frozen into a slice, which does not change.
// An aggregate is a sequence of slices; editing it moves no bytes. A channel passes aggregates to
// another process. Terms are those of "IO-Lite: A Unified I/O Buffering and Caching System".
//
// Each function has a man page. Functions return 0 or more, or a negative error number of errno(3);
// iol_strerror describes it. They do not set errno. If a function fails, it changes nothing, unless
// its man page says otherwise.
//
// No function takes over an object that it gets, except iol_buffer_freeze, iol_unsealed_seal,
// iol_channel_close and iol_program_close, and the functions that destroy. An object may be
// destroyed before the objects that were made with it. Any number of threads may use the same slab,
// pool, account, slice or request; one thread at a time may use a buffer, an aggregate, unsealed
// memory, a channel or a program, except to interrupt a program. A child of fork(2) must not use
// the objects of its parent.
#ifndef IOLITE_H
#define IOLITE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct iol_slab;      // memory of this process
struct iol_pool;      // memory of this process that other processes read where it is
struct iol_unsealed;  // a memory file that is being filled, and then sealed
struct iol_buffer;    // memory of a slab or a pool that is being filled
struct iol_slice;     // bytes that do not change
struct iol_aggregate; // a sequence of slices
struct iol_account;   // how much memory of other processes this one holds
struct iol_channel;   // one end of a connection to another process
struct iol_program;   // receives the requests of servers, and responds to them
struct iol_request;   // a request of a server

// Kinds of memory of a slab.
enum {
  IOL_ZERO_COPY = 0, // in pages; can also be sent by sendfile(2)
  IOL_COPIED = 1,    // in units of 256 bytes, for small data
};

// Flags of channel options.
enum {
  // Join the pools that the other process creates, which has to be trusted: it can change the bytes
  // that it passes by reference.
  IOL_JOIN_POOLS = 1,
  // Send through the socket, not through a ring in shared memory.
  IOL_NO_RING = 2,
};

// Limits.
enum {
  IOL_BUFFER_BYTES_MAX = 2097152, // bytes of a buffer of a pool, or of IOL_ZERO_COPY
  IOL_COPIED_BYTES_MAX = 32768,   // bytes of a buffer of IOL_COPIED
  IOL_SLAB_BYTES_MIN = 4194304,
  IOL_POOL_BYTES_MIN = 2097152,
  IOL_RING_FRAMES_MAX = 1024,
  IOL_SLICES_MAX = 2048, // slices of an aggregate that a channel sends
};

// Identifies contents in this process: other contents of the same slab, or of any pool or sealed
// memory, never get the same id.
struct iol_id {
  uint32_t pool;       // 0: a slab; UINT32_MAX: sealed memory; otherwise the number of a pool
  uint32_t length;     // in bytes
  uint64_t offset;     // in bytes from the start of the slab, pool or file
  uint64_t generation; // the number of the contents at this place
};

// Bytes of one slice.
struct iol_part {
  const void *bytes; // valid as long as the slice is held; NULL if there are none
  size_t length;
  struct iol_id id;
};

// The state and the counters of a slab. live + free + tainted is the size of the blocks in use.
struct iol_slab_stats {
  uint64_t capacity;          // bytes of the whole slab
  uint64_t live;              // bytes in use, in whole units
  uint64_t free;              // unused bytes that can be allocated at once
  uint64_t tainted;           // unused bytes that wait until their whole block is unused
  uint64_t extents;           // allocations in use
  uint64_t small_page_blocks; // blocks of 2 MB for which there was no huge page
  uint64_t recycled;          // blocks that were returned to the kernel
  uint64_t sums_computed;     // checksums that were computed
  uint64_t sums_reused;       // checksums that were found again
};

// The state and the counters of a pool.
struct iol_pool_stats {
  uint64_t blocks;           // blocks of 2 MB that have memory
  uint64_t retired_blocks;   // unused blocks that members have mapped
  uint64_t passed_extents;   // allocations that only members may hold
  uint64_t live;             // bytes in use, in whole pages
  uint64_t created_blocks;   // blocks that were created
  uint64_t excluded_members; // members that get copies
};

// Options of one end of a channel. Set all fields to 0 first; 0 is the default.
struct iol_channel_options {
  const struct iol_slab *slab;       // required: receives bytes that the sender copied
  const struct iol_account *account; // is charged for sealed memory; NULL: a new one of 64 MB
  size_t ring_frames;     // slices that wait in the ring of this end; 0: 128
  size_t copied_max;      // shorter slices are copied through the ring; 0: 1 MB
  uint64_t in_flight_max; // bytes of pools that are under way; 0: 16777216
  uint32_t flags;         // IOL_JOIN_POOLS, IOL_NO_RING
  uint32_t reserved;      // 0
};

// iol_slab_create(3): create a slab of `bytes`, rounded down to blocks of 2 MB.
int iol_slab_create(struct iol_slab **slab, size_t bytes);
// iol_slab_create(3): destroy a slab. Buffers and slices of it keep its memory. NULL is allowed.
void iol_slab_destroy(struct iol_slab *slab);
// iol_slab_create(3): prepare a block ahead of use. Returns 1 if it did, 0 if enough are ready.
int iol_slab_prefault(const struct iol_slab *slab);
// iol_slab_create(3): return 1 if contents of the slab are still held, unchanged; otherwise 0.
int iol_slab_is_current(const struct iol_slab *slab, const struct iol_id *id);
// iol_slab_create(3): store the state and the counters.
int iol_slab_stats(const struct iol_slab *slab, struct iol_slab_stats *stats);

// iol_slab_allocate(3): allocate a buffer of at least `bytes_min`, and up to `bytes_max` if there
// is contiguous memory.
int iol_slab_allocate(const struct iol_slab *slab, int kind, size_t bytes_min, size_t bytes_max,
                      struct iol_buffer **buffer);
// iol_slab_allocate(3): store the address and the size of the memory still to be filled.
int iol_buffer_unfilled(struct iol_buffer *buffer, void **start, size_t *room);
// iol_slab_allocate(3): record that the first `count` unfilled bytes were written.
int iol_buffer_advance(struct iol_buffer *buffer, size_t count);
// iol_slab_allocate(3): copy as many bytes as fit. Returns their number.
ssize_t iol_buffer_write(struct iol_buffer *buffer, const void *bytes, size_t count);
// iol_slab_allocate(3): make a slice of filled bytes. The buffer is filled on.
int iol_buffer_slice(const struct iol_buffer *buffer, size_t offset, size_t length,
                     struct iol_slice **slice);
// iol_slab_allocate(3): turn a buffer into a slice of its filled bytes. Destroys the buffer.
int iol_buffer_freeze(struct iol_buffer *buffer, struct iol_slice **slice);
// iol_slab_allocate(3): destroy a buffer that was not frozen. NULL is allowed.
void iol_buffer_destroy(struct iol_buffer *buffer);

// iol_slice_describe(3): store the address, the length and the id of the bytes.
int iol_slice_describe(const struct iol_slice *slice, struct iol_part *part);
// iol_slice_describe(3): make another slice of the same bytes.
int iol_slice_duplicate(const struct iol_slice *slice, struct iol_slice **copy);
// iol_slice_describe(3): make a slice of some of the bytes.
int iol_slice_part(const struct iol_slice *slice, size_t offset, size_t length,
                   struct iol_slice **part);
// iol_slice_describe(3): destroy a slice. Other holders keep the bytes. NULL is allowed.
void iol_slice_destroy(struct iol_slice *slice);
// iol_slice_sendfile_source(3): store the descriptor and the offset of the bytes for sendfile(2).
int iol_slice_sendfile_source(const struct iol_slice *slice, int *fd, uint64_t *offset);

// iol_aggregate_create(3): create an empty aggregate.
int iol_aggregate_create(struct iol_aggregate **aggregate);
// iol_aggregate_create(3): create an aggregate of bytes that are copied into a slab.
int iol_aggregate_from_bytes(const struct iol_slab *slab, int kind, const void *bytes, size_t count,
                             struct iol_aggregate **aggregate);
// iol_aggregate_create(3): make another aggregate of the same slices.
int iol_aggregate_duplicate(const struct iol_aggregate *aggregate, struct iol_aggregate **copy);
// iol_aggregate_create(3): destroy an aggregate. Other holders keep its slices. NULL is allowed.
void iol_aggregate_destroy(struct iol_aggregate *aggregate);
// iol_aggregate_create(3): return the number of bytes.
int64_t iol_aggregate_length(const struct iol_aggregate *aggregate);
// iol_aggregate_create(3): return the number of slices.
ssize_t iol_aggregate_slices(const struct iol_aggregate *aggregate);

// iol_aggregate_append(3): append a slice.
int iol_aggregate_append(struct iol_aggregate *aggregate, const struct iol_slice *slice);
// iol_aggregate_append(3): prepend a slice.
int iol_aggregate_prepend(struct iol_aggregate *aggregate, const struct iol_slice *slice);
// iol_aggregate_append(3): append all slices of `other`, which stays as it is.
int iol_aggregate_concatenate(struct iol_aggregate *aggregate, const struct iol_aggregate *other);
// iol_aggregate_append(3): keep the first `length` bytes.
int iol_aggregate_truncate(struct iol_aggregate *aggregate, uint64_t length);
// iol_aggregate_append(3): drop the first `count` bytes.
int iol_aggregate_skip(struct iol_aggregate *aggregate, uint64_t count);
// iol_aggregate_append(3): move the bytes from `position` on to a new aggregate.
int iol_aggregate_split(struct iol_aggregate *aggregate, uint64_t position,
                        struct iol_aggregate **rest);
// iol_aggregate_append(3): make an aggregate of a part of the bytes.
int iol_aggregate_range(const struct iol_aggregate *aggregate, uint64_t position, uint64_t length,
                        struct iol_aggregate **part);
// iol_aggregate_append(3): replace `length` bytes at `position` by those of `with`.
int iol_aggregate_replace(struct iol_aggregate *aggregate, uint64_t position, uint64_t length,
                          const struct iol_aggregate *with);

// iol_aggregate_write(3): overwrite bytes: in place if nothing else holds their slice, otherwise in
// new memory of `slab`.
int iol_aggregate_write(struct iol_aggregate *aggregate, uint64_t position, const void *bytes,
                        size_t count, const struct iol_slab *slab, int kind);
// iol_aggregate_write(3): copy all bytes to new memory, in as few slices as possible.
int iol_aggregate_copy(const struct iol_aggregate *aggregate, const struct iol_slab *slab, int kind,
                       struct iol_aggregate **copy);
// iol_aggregate_write(3): make one slice of all bytes. Copies them if they are in several slices.
int iol_aggregate_contiguous(const struct iol_aggregate *aggregate, const struct iol_slab *slab,
                             int kind, struct iol_slice **slice);

// iol_aggregate_next(3): describe the bytes from `*position` on that are in one slice, and add
// their number to `*position`. Returns 1 if there are any, otherwise 0.
int iol_aggregate_next(const struct iol_aggregate *aggregate, uint64_t *position,
                       struct iol_part *part);
// iol_aggregate_next(3): make a slice of these bytes.
int iol_aggregate_slice(const struct iol_aggregate *aggregate, uint64_t position,
                        struct iol_slice **slice);
// iol_aggregate_next(3): copy up to `max` bytes from `position` on. Returns their number.
ssize_t iol_aggregate_read(const struct iol_aggregate *aggregate, uint64_t position, void *bytes,
                           size_t max);

// iol_aggregate_checksum(3): return the Internet checksum (RFC 1071) in host order.
int iol_aggregate_checksum(const struct iol_aggregate *aggregate);
// iol_aggregate_checksum(3): return the Internet checksum of a slice.
int iol_slice_checksum(const struct iol_slice *slice);
// iol_mmap(3): map an aggregate as contiguous private memory, until munmap(2).
int iol_mmap(const struct iol_aggregate *aggregate, void **start);

// iol_unsealed_create(3): create a memory file with room for at least `bytes`.
int iol_unsealed_create(struct iol_unsealed **memory, size_t bytes);
// iol_unsealed_create(3): store the address and the size of the memory still to be filled.
int iol_unsealed_unfilled(struct iol_unsealed *memory, void **start, size_t *room);
// iol_unsealed_create(3): record that the first `count` unfilled bytes were written.
int iol_unsealed_advance(struct iol_unsealed *memory, size_t count);
// iol_unsealed_create(3): copy as many bytes as fit. Returns their number.
ssize_t iol_unsealed_write(struct iol_unsealed *memory, const void *bytes, size_t count);
// iol_unsealed_create(3): seal the filled bytes and make a slice of them. Destroys `memory`.
int iol_unsealed_seal(struct iol_unsealed *memory, struct iol_slice **slice);
// iol_unsealed_create(3): destroy memory that was not sealed. NULL is allowed.
void iol_unsealed_destroy(struct iol_unsealed *memory);

// iol_slice_accept(3): make a slice of sealed memory from another process. Takes over `fd`.
int iol_slice_accept(int fd, const struct iol_account *account, struct iol_slice **slice);
// iol_slice_accept(3): return the descriptor of a slice of sealed memory. The slice owns it.
int iol_slice_sealed_file(const struct iol_slice *slice);

// iol_account_create(3): create an account of `bytes_max`.
int iol_account_create(struct iol_account **account, uint64_t bytes_max);
// iol_account_create(3): destroy an account. Charges stay as long as their slices. NULL is allowed.
void iol_account_destroy(struct iol_account *account);
// iol_account_create(3): return the bytes that are charged.
int64_t iol_account_held(const struct iol_account *account);

// iol_pool_create(3): create a pool whose members are the processes at the other ends of `count`
// channels.
int iol_pool_create(struct iol_pool **pool, size_t bytes, uint64_t quota,
                    struct iol_channel *const *members, size_t count);
// iol_pool_create(3): destroy a pool. Buffers and slices of it keep its memory. NULL is allowed.
void iol_pool_destroy(struct iol_pool *pool);
// iol_pool_create(3): allocate a buffer, as iol_slab_allocate does.
int iol_pool_allocate(const struct iol_pool *pool, size_t bytes_min, size_t bytes_max,
                      struct iol_buffer **buffer);
// iol_pool_create(3): copy all bytes of an aggregate to new memory of the pool.
int iol_pool_copy(const struct iol_pool *pool, const struct iol_aggregate *aggregate,
                  struct iol_aggregate **copy);
// iol_pool_create(3): free the memory that no process holds. Allocations do this by themselves.
int iol_pool_collect(const struct iol_pool *pool);
// iol_pool_create(3): store the state and the counters.
int iol_pool_stats(const struct iol_pool *pool, struct iol_pool_stats *stats);
// iol_pool_create(3): return the number of the pool, as in ids; 0 if `pool` is NULL.
uint32_t iol_pool_number(const struct iol_pool *pool);

// iol_channel_create(3): create a pair of sockets, one for each process.
int iol_channel_sockets(int fds[2]);
// iol_channel_create(3): begin a channel on a socket. Takes over the socket.
int iol_channel_create(struct iol_channel **channel, int socket,
                       const struct iol_channel_options *options);
// iol_channel_create(3): wait until everything was received, and destroy the channel.
int iol_channel_close(struct iol_channel *channel);
// iol_channel_create(3): destroy a channel without waiting. NULL is allowed.
void iol_channel_destroy(struct iol_channel *channel);

// iol_channel_send(3): send an aggregate, and wait until there is room for it.
int iol_channel_send(struct iol_channel *channel, const struct iol_aggregate *aggregate);
// iol_channel_send(3): begin to send an aggregate; -EAGAIN if there is no room for one.
int iol_channel_try_send(struct iol_channel *channel, const struct iol_aggregate *aggregate);
// iol_channel_send(3): send the rest of an aggregate; -EAGAIN if some of it is left.
int iol_channel_flush(struct iol_channel *channel);

// iol_channel_receive(3): wait for the next aggregate. Returns 1, or 0 at the end.
int iol_channel_receive(struct iol_channel *channel, struct iol_aggregate **aggregate);
// iol_channel_receive(3): receive the next aggregate; -EAGAIN if there is none yet.
int iol_channel_try_receive(struct iol_channel *channel, struct iol_aggregate **aggregate);
// iol_channel_receive(3): return the descriptor for poll(2). The channel owns it.
int iol_channel_fd(const struct iol_channel *channel);
// iol_channel_receive(3): make the descriptor readable for what comes next. Returns 1 if there is
// something to receive already, otherwise 0.
int iol_channel_prepare_to_wait(struct iol_channel *channel);
// iol_channel_receive(3): return how many files of pools of the other process were mapped.
int64_t iol_channel_maps(const struct iol_channel *channel);

// iol_read(3): read up to `length` bytes from the position of a descriptor. Return their number; 0
// at the end.
ssize_t iol_read(int fd, size_t length, struct iol_aggregate **aggregate);
// iol_read(3): read from an offset of a file.
ssize_t iol_pread(int fd, size_t length, off_t offset, struct iol_aggregate **aggregate);
// iol_read(3): from now on, read the bytes of pipes and connections where writers of the same user
// have them.
int iol_trust_user(void);
// iol_write(3): write an aggregate to a descriptor, and return the number of bytes written.
ssize_t iol_write(int fd, const struct iol_aggregate *aggregate);
// iol_write(3): allocate memory for bytes that are written to a descriptor later.
int iol_allocate(int fd, size_t bytes, struct iol_buffer **buffer);

// iol_program_create(3): listen for servers on a Unix socket at `path` with the permission bits
// `mode`.
int iol_program_create(struct iol_program **program, const char *path, unsigned mode);
// iol_program_create(3): wait until all responses were received, and destroy the program.
int iol_program_close(struct iol_program *program);
// iol_program_create(3): destroy a program without waiting. NULL is allowed.
void iol_program_destroy(struct iol_program *program);
// iol_program_receive(3): wait for the next request.
int iol_program_receive(struct iol_program *program, struct iol_request **request);
// iol_program_receive(3): let the current or the next receive return -EINTR. For other threads and
// signal handlers.
int iol_program_interrupt(const struct iol_program *program);
// iol_program_receive(3): return the value of a variable such as "REQUEST_METHOD"; NULL if it is
// not set. The request owns the value.
const char *iol_request_variable(const struct iol_request *request, const char *name);
// iol_program_receive(3): make an aggregate of the body.
int iol_request_body(const struct iol_request *request, struct iol_aggregate **body);
// iol_program_receive(3): destroy a request. NULL is allowed.
void iol_request_destroy(struct iol_request *request);
// iol_program_respond(3): respond to a request, without waiting. `body` may be NULL.
int iol_program_respond(struct iol_program *program, const struct iol_request *request,
                        const void *header, size_t header_bytes, const struct iol_aggregate *body);

// iol_strerror(3): describe an error number. The text is valid until the next call by the thread.
const char *iol_strerror(int error);
// iol_strerror(3): return the text of the last error of a channel, valid until its next call.
const char *iol_channel_error(const struct iol_channel *channel);

// The sizes that libiolite.so.0 was built with. The library asserts the same sizes.
#if defined(__LP64__) && (defined(__cplusplus) || __STDC_VERSION__ >= 201112L)
#ifdef __cplusplus
#define IOL_ASSERT static_assert
#else
#define IOL_ASSERT _Static_assert
#endif
IOL_ASSERT(sizeof(struct iol_id) == 24, "iol_id has 24 bytes");
IOL_ASSERT(sizeof(struct iol_part) == 40, "iol_part has 40 bytes");
IOL_ASSERT(sizeof(struct iol_slab_stats) == 72, "iol_slab_stats has 72 bytes");
IOL_ASSERT(sizeof(struct iol_pool_stats) == 48, "iol_pool_stats has 48 bytes");
IOL_ASSERT(sizeof(struct iol_channel_options) == 48, "iol_channel_options has 48 bytes");
#undef IOL_ASSERT
#endif

#ifdef __cplusplus
}
#endif

#endif
