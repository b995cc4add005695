"""A program that hands its responses over to `millrace` without a copy. See README.md.

/new makes a document for each request, /echo sends the body of the request back, and each other
path has the same document.
"""

import ctypes
import signal
import sys
import threading

lib = ctypes.CDLL("libiolite.so.0")
lib.iol_strerror.restype = ctypes.c_char_p
lib.iol_request_variable.restype = ctypes.c_char_p
lib.iol_aggregate_length.restype = ctypes.c_int64
lib.iol_unsealed_write.restype = lib.iol_aggregate_read.restype = ctypes.c_ssize_t


def call(name, *arguments):
    """Calls a function of the library. Raises OSError with the text of its error."""
    result = getattr(lib, name)(*arguments)
    if result < 0:
        raise OSError(-result, lib.iol_strerror(ctypes.c_int(result)).decode())
    return result


class Object:
    """An object of the library, which is destroyed with this one."""

    def __init__(self, kind):
        self.kind = kind
        self.pointer = ctypes.c_void_p()

    @property
    def place(self):
        """Where a function of the library stores the pointer."""
        return ctypes.byref(self.pointer)

    def __del__(self):
        if self.pointer:
            getattr(lib, f"iol_{self.kind}_destroy")(self.pointer)


def make_document(content):
    """Makes a document in memory that nothing can change any more."""
    memory, piece, document = Object("unsealed"), Object("slice"), Object("aggregate")
    call("iol_unsealed_create", memory.place, ctypes.c_size_t(len(content)))
    call("iol_unsealed_write", memory.pointer, content, ctypes.c_size_t(len(content)))
    sealed, memory.pointer = memory.pointer, None
    call("iol_unsealed_seal", sealed, piece.place)
    call("iol_aggregate_create", document.place)
    call("iol_aggregate_append", document.pointer, piece.pointer)
    return document


def body_of(request):
    body = Object("aggregate")
    call("iol_request_body", request.pointer, body.place)
    return body


def serve(program, length):
    header = b"Content-Type: text/plain\n\n"
    same = make_document(b"a" * length)
    number = 0
    while True:
        request = Object("request")
        call("iol_program_receive", program.pointer, request.place)
        number += 1
        match lib.iol_request_variable(request.pointer, b"PATH_INFO"):
            case b"/new":
                body = make_document(str(number % 10).encode() * length)
            case b"/echo":
                body = body_of(request)
            case _:
                body = same
        call("iol_program_respond", program.pointer, request.pointer, header,
             ctypes.c_size_t(len(header)), body.pointer)


def interrupt(program):
    """Waits for SIGTERM. Python runs no handler while the main thread waits in the library."""
    signal.sigwait([signal.SIGTERM])
    call("iol_program_interrupt", program.pointer)


def main(path, length=65536):
    program = Object("program")
    call("iol_program_create", program.place, path.encode(), 0o666)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=interrupt, args=[program], daemon=True).start()
    try:
        serve(program, length)
    except InterruptedError:  # -EINTR
        # A second SIGTERM ends the wait for servers.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        closed, program.pointer = program.pointer, None
        call("iol_program_close", closed)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: program.py SOCKET [BYTES]")
    main(sys.argv[1], *map(int, sys.argv[2:]))
