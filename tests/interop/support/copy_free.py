"""Programs that hand over their responses without a copy, by libiolite for C."""

import ctypes
import multiprocessing
import os
import pathlib
import signal
import time

PROJECT = pathlib.Path(__file__).resolve().parents[3]
# The library that cargo builds with the program under test.
LIBRARY = PROJECT / "target/debug/libiolite_c.so"
SEALED, COPIED = "sealed", "copied"
SLAB_BYTES = 16 << 20


def link_library(folder):
    """Makes the library findable below its usual name, by LD_LIBRARY_PATH. Returns the folder."""
    for name in ("libiolite.so", "libiolite.so.0"):
        (folder / name).symlink_to(LIBRARY)
    return folder


class _Library:
    def __init__(self):
        self.functions = ctypes.CDLL(str(LIBRARY))
        self.functions.iol_request_variable.restype = ctypes.c_char_p
        for name in ("iol_aggregate_length", "iol_aggregate_read", "iol_unsealed_write"):
            getattr(self.functions, name).restype = ctypes.c_int64

    def call(self, name, *arguments):
        result = getattr(self.functions, name)(*arguments)
        assert result >= 0, f"{name}: {os.strerror(-result)}"
        return result

    def create(self, name, *arguments, first=False):
        """Calls a function that stores an object in its last or first argument."""
        place = ctypes.c_void_p()
        ends = [ctypes.byref(place)]
        self.call(name, *(ends + list(arguments) if first else list(arguments) + ends))
        return place

    def sealed(self, content):
        memory = self.create("iol_unsealed_create", ctypes.c_size_t(len(content)), first=True)
        self.call("iol_unsealed_write", memory, content, ctypes.c_size_t(len(content)))
        return self.create("iol_unsealed_seal", memory)

    def aggregate(self, parts, slab):
        """Makes an aggregate of parts: slices, or pairs of SEALED or COPIED and bytes."""
        whole = self.create("iol_aggregate_create", first=True)
        for part in parts:
            if isinstance(part, ctypes.c_void_p):
                self.call("iol_aggregate_append", whole, part)
                continue
            kind, content = part
            if kind == SEALED and content:
                piece = self.sealed(content)
                self.call("iol_aggregate_append", whole, piece)
                self.functions.iol_slice_destroy(piece)
            elif content:
                size = ctypes.c_size_t(len(content))
                other = self.create("iol_aggregate_from_bytes", slab, 1, content, size)
                self.call("iol_aggregate_concatenate", whole, other)
                self.functions.iol_aggregate_destroy(other)
        return whole

    def body(self, request):
        body = self.create("iol_request_body", request)
        content = ctypes.create_string_buffer(self.call("iol_aggregate_length", body))
        size = ctypes.c_size_t(len(content))
        assert self.call("iol_aggregate_read", body, ctypes.c_uint64(0), content, size) == size.value
        self.functions.iol_aggregate_destroy(body)
        return content.raw


class Request:
    def __init__(self, library, pointer):
        self._library, self._pointer = library, pointer
        self.body = library.body(pointer)

    def __getitem__(self, name):
        return self._library.functions.iol_request_variable(self._pointer, name.encode())


def _run(path, respond, documents):
    library = _Library()
    program = library.create("iol_program_create", str(path).encode(), 0o666, first=True)
    slab = library.create("iol_slab_create", ctypes.c_size_t(SLAB_BYTES), first=True)
    kept = {name: library.sealed(content) for name, content in documents.items()}
    while True:
        pointer = library.create("iol_program_receive", program)
        header, *parts = respond(Request(library, pointer))
        body = library.aggregate([kept.get(part, part) if isinstance(part, str) else part
                                  for part in parts], slab)
        library.call("iol_program_respond", program, pointer, header,
                     ctypes.c_size_t(len(header)), body)
        library.functions.iol_aggregate_destroy(body)
        library.functions.iol_request_destroy(pointer)


class Program:
    """A program in a process of its own. `respond` gets a `Request` and returns a header, and parts
    of the body: names of `documents`, which are sealed once, or pairs of SEALED or COPIED and
    bytes."""

    def __init__(self, path, respond, documents=()):
        self.path = path
        self.address = f"unix:{path}"
        created = lambda: path.stat().st_ctime_ns if path.exists() else None
        before = created()
        fork = multiprocessing.get_context("fork")
        arguments = (path, respond, dict(documents))
        self.process = fork.Process(target=_run, args=arguments, daemon=True)
        self.process.start()
        deadline = time.monotonic() + 60
        while created() in (None, before):
            assert time.monotonic() < deadline and self.process.is_alive(), "no program"
            time.sleep(0.01)

    def stop(self, how=signal.SIGKILL):
        if self.process.is_alive():
            os.kill(self.process.pid, how)
        self.process.join()
