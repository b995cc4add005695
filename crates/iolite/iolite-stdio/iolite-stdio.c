// libiolite-stdio: streams of stdio(3) over pipes and sockets that carry aggregates. See
// iol_stdio(3).
//
// It replaces fdopen, freopen, popen, pclose and fileno, and the streams stdin and stdout. Its
// streams are those of fopencookie(3). All other functions of stdio are the ones of the C library.
//
// Each stream begins with read(2) and write(2). libiolite is loaded when one has moved many bytes,
// because loading it takes longer than short programs need for all their input and output.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <iolite.h>
#include <pthread.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The bytes that a stream reads and writes at a time.
#define STREAM_BYTES ((size_t)64 << 10)
// A stream that has moved more bytes uses libiolite.
#define ORDINARY_BYTES_MAX ((size_t)32 << 10)

// A stream of this library. `next` is guarded by `streams_lock`, all else by the stream's own lock.
struct stream {
    FILE *file;
    // The stream of popen(3) in whose place the program uses this one; usually NULL.
    FILE *popened;
    struct stream *next;
    int fd;
    int writes;
    size_t moved;
    char buffer[STREAM_BYTES];
};

static struct stream *streams;
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;

// The functions of libiolite.
static struct {
    __typeof__(&iol_read) read;
    __typeof__(&iol_write) write;
    __typeof__(&iol_allocate) allocate;
    __typeof__(&iol_buffer_write) buffer_write;
    __typeof__(&iol_buffer_freeze) buffer_freeze;
    __typeof__(&iol_slice_destroy) slice_destroy;
    __typeof__(&iol_aggregate_create) create;
    __typeof__(&iol_aggregate_append) append;
    __typeof__(&iol_aggregate_read) copy;
    __typeof__(&iol_aggregate_destroy) destroy;
} iolite;
static int has_iolite;

static void *found(void *library, const char *name)
{
    void *function = dlsym(library, name);
    if (!function)
        fprintf(stderr, "iolite-stdio: %s\n", dlerror());
    has_iolite &= function != NULL;
    return function;
}

static void load_once(void)
{
    void *library = dlopen("libiolite.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "iolite-stdio: the kernel copies all bytes: %s\n", dlerror());
        return;
    }
    has_iolite = 1;
    iolite.read = found(library, "iol_read");
    iolite.write = found(library, "iol_write");
    iolite.allocate = found(library, "iol_allocate");
    iolite.buffer_write = found(library, "iol_buffer_write");
    iolite.buffer_freeze = found(library, "iol_buffer_freeze");
    iolite.slice_destroy = found(library, "iol_slice_destroy");
    iolite.create = found(library, "iol_aggregate_create");
    iolite.append = found(library, "iol_aggregate_append");
    iolite.copy = found(library, "iol_aggregate_read");
    iolite.destroy = found(library, "iol_aggregate_destroy");
}

// Returns whether a stream uses libiolite from now on.
static int uses_iolite(const struct stream *stream)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (stream->moved < ORDINARY_BYTES_MAX)
        return 0;
    pthread_once(&once, load_once);
    return has_iolite;
}

// Returns the result of a call of libiolite like that of a system call.
static ssize_t result_of(ssize_t result)
{
    if (result >= 0)
        return result;
    // Errors of its own mean that a process has broken the protocol.
    errno = result > -4096 ? (int)-result : EIO;
    return -1;
}

static ssize_t receive(const struct stream *stream, char *bytes, size_t size)
{
    struct iol_aggregate *aggregate;
    ssize_t count = iolite.read(stream->fd, size, &aggregate);
    if (count < 0)
        return result_of(count);
    count = iolite.copy(aggregate, 0, bytes, size);
    iolite.destroy(aggregate);
    return result_of(count);
}

static ssize_t send(const struct stream *stream, const char *bytes, size_t size)
{
    struct iol_buffer *buffer;
    struct iol_slice *slice;
    struct iol_aggregate *aggregate;
    ssize_t result;
    if (size > IOL_BUFFER_BYTES_MAX)
        size = IOL_BUFFER_BYTES_MAX;
    if ((result = iolite.allocate(stream->fd, size, &buffer)) < 0)
        return result_of(result);
    iolite.buffer_write(buffer, bytes, size);
    if ((result = iolite.buffer_freeze(buffer, &slice)) < 0)
        return result_of(result);
    if ((result = iolite.create(&aggregate)) == 0) {
        result = iolite.append(aggregate, slice);
        if (result == 0)
            result = iolite.write(stream->fd, aggregate);
        iolite.destroy(aggregate);
    }
    iolite.slice_destroy(slice);
    return result_of(result);
}

static ssize_t stream_read(void *cookie, char *bytes, size_t size)
{
    struct stream *stream = cookie;
    ssize_t count =
        uses_iolite(stream) ? receive(stream, bytes, size) : read(stream->fd, bytes, size);
    if (count > 0)
        stream->moved += (size_t)count;
    return count;
}

// Writes all bytes, unless there is an error. Returns the number of bytes.
static ssize_t stream_write(void *cookie, const char *bytes, size_t size)
{
    struct stream *stream = cookie;
    size_t written = 0;
    while (written < size) {
        const char *rest = bytes + written;
        ssize_t count = uses_iolite(stream) ? send(stream, rest, size - written)
                                            : write(stream->fd, rest, size - written);
        if (count < 0)
            break;
        written += (size_t)count;
        stream->moved += (size_t)count;
    }
    return (ssize_t)written;
}

static int stream_seek(void *cookie, off64_t *offset, int whence)
{
    const struct stream *stream = cookie;
    off64_t position = lseek64(stream->fd, *offset, whence);
    if (position >= 0)
        *offset = position;
    return position < 0 ? -1 : 0;
}

static int stream_close(void *cookie)
{
    struct stream *stream = cookie, **place = &streams;
    pthread_mutex_lock(&streams_lock);
    while (*place != stream)
        place = &(*place)->next;
    *place = stream->next;
    pthread_mutex_unlock(&streams_lock);
    int result = close(stream->fd);
    // A stream of popen that fclose closes: its child gets the end of its input.
    if (stream->popened)
        result = fclose(stream->popened);
    free(stream);
    return result;
}

// Returns the stream of this library that the program knows as `file`; NULL if it is another one.
static struct stream *stream_of(const FILE *file)
{
    pthread_mutex_lock(&streams_lock);
    struct stream *stream = streams;
    while (stream && stream->file != file)
        stream = stream->next;
    pthread_mutex_unlock(&streams_lock);
    return stream;
}

// Returns whether a descriptor may carry aggregates.
static int is_stream(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
}

// Makes a stream that owns a descriptor; NULL without memory.
static FILE *stream_of_descriptor(int fd, int writes)
{
    cookie_io_functions_t functions = {stream_read, stream_write, stream_seek, stream_close};
    struct stream *stream = malloc(sizeof *stream);
    if (!stream)
        return NULL;
    stream->popened = NULL;
    stream->fd = fd;
    stream->writes = writes;
    stream->moved = 0;
    stream->file = fopencookie(stream, writes ? "w" : "r", functions);
    if (!stream->file) {
        free(stream);
        return NULL;
    }
    setvbuf(stream->file, stream->buffer, _IOFBF, STREAM_BYTES);
    pthread_mutex_lock(&streams_lock);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&streams_lock);
    return stream->file;
}

// Returns 1 for a mode that only writes, 0 for one that only reads, and -1 for others.
static int writes_by(const char *mode)
{
    if (strpbrk(mode, "+,"))
        return -1;
    return mode[0] == 'r' ? 0 : mode[0] == 'w' || mode[0] == 'a' ? 1 : -1;
}

FILE *fdopen(int fd, const char *mode)
{
    static __typeof__(&fdopen) next;
    int writes = writes_by(mode), access = fcntl(fd, F_GETFL);
    if (!next)
        next = (__typeof__(&fdopen))dlsym(RTLD_NEXT, "fdopen");
    if (writes < 0 || access < 0 || (access & O_ACCMODE) == (writes ? O_RDONLY : O_WRONLY) ||
        !is_stream(fd))
        return next(fd, mode);
    if (strchr(mode, 'e'))
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    return stream_of_descriptor(fd, writes);
}

// Opens a file at another descriptor than the first free one: that may have the number of a stream
// whose descriptor the program has closed. Returns -1 after an error.
static int open_beside(const char *path, const char *mode)
{
    FILE *opened = fopen(path, mode);
    if (!opened)
        return -1;
    int fd = fcntl(fileno(opened), F_DUPFD_CLOEXEC, 0), error = errno;
    fclose(opened);
    errno = error;
    return fd;
}

FILE *freopen(const char *path, const char *mode, FILE *file)
{
    static __typeof__(&freopen) next;
    struct stream *stream = stream_of(file);
    if (!next)
        next = (__typeof__(&freopen))dlsym(RTLD_NEXT, "freopen");
    if (!stream)
        return next(path, mode, file);
    fflush(file);
    if (writes_by(mode) != stream->writes) {
        errno = EINVAL;
        return NULL;
    }
    if (path) {
        int fd = open_beside(path, mode);
        if (fd < 0)
            return NULL;
        int result = dup3(fd, stream->fd, strchr(mode, 'e') ? O_CLOEXEC : 0);
        close(fd);
        if (result < 0)
            return NULL;
        stream->moved = 0;
    }
    __fpurge(file);
    clearerr(file);
    return file;
}

FILE *freopen64(const char *path, const char *mode, FILE *file)
{
    return freopen(path, mode, file);
}

FILE *popen(const char *command, const char *mode)
{
    static __typeof__(&popen) next;
    if (!next)
        next = (__typeof__(&popen))dlsym(RTLD_NEXT, "popen");
    FILE *popened = next(command, mode);
    if (!popened)
        return NULL;
    int fd = fcntl(fileno(popened), F_DUPFD_CLOEXEC, 0);
    FILE *file = fd < 0 ? NULL : stream_of_descriptor(fd, mode[0] == 'w');
    if (!file) {
        if (fd >= 0)
            close(fd);
        return popened;
    }
    stream_of(file)->popened = popened;
    return file;
}

int pclose(FILE *file)
{
    static __typeof__(&pclose) next;
    struct stream *stream = stream_of(file);
    if (!next)
        next = (__typeof__(&pclose))dlsym(RTLD_NEXT, "pclose");
    if (stream && stream->popened) {
        FILE *popened = stream->popened;
        stream->popened = NULL;
        fclose(file);
        file = popened;
    }
    return next(file);
}

int fileno(FILE *file)
{
    static __typeof__(&fileno) next;
    const struct stream *stream = stream_of(file);
    if (!next)
        next = (__typeof__(&fileno))dlsym(RTLD_NEXT, "fileno");
    return stream ? stream->fd : next(file);
}

int fileno_unlocked(FILE *file)
{
    return fileno(file);
}

__attribute__((constructor)) static void replace_standard_streams(void)
{
    FILE *file;
    if (is_stream(STDIN_FILENO) && (file = stream_of_descriptor(STDIN_FILENO, 0)))
        stdin = file;
    if (is_stream(STDOUT_FILENO) && (file = stream_of_descriptor(STDOUT_FILENO, 1)))
        stdout = file;
}
