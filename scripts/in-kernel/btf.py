"""The types and functions of this kernel (BTF, linux/btf.h)."""

import functools
import pathlib
import struct

STRUCT, FUNCTION = 4, 12
# By kind: bytes of the data after the common 12 bytes, and bytes for each entry. Other kinds have
# no such data.
_BEHIND = {1: (4, 0), 3: (12, 0), 4: (0, 12), 5: (0, 12), 6: (0, 8), 13: (0, 8), 14: (4, 0),
           15: (0, 12), 17: (4, 0), 19: (0, 12)}


class _Types:
    def __init__(self):
        self.data = pathlib.Path("/sys/kernel/btf/vmlinux").read_bytes()
        words = struct.unpack_from("=HBBIIIII", self.data)
        header, types, self.types_bytes, strings = words[3:7]
        self.types, self.strings = header + types, header + strings

    def name(self, at):
        at += self.strings
        return self.data[at : self.data.index(0, at)].decode()

    def find(self, kind, name):
        """Returns the id of the type of this kind and name, the offset and number of its entries,
        and its kind_flag."""
        at, number = self.types, 1
        while at < self.types + self.types_bytes:
            called, info, _ = struct.unpack_from("=III", self.data, at)
            its_kind, count = info >> 24 & 31, info & 0xFFFF
            if its_kind == kind and self.name(called) == name:
                return number, at + 12, count, info >> 31
            fixed, each = _BEHIND.get(its_kind, (0, 0))
            at += 12 + fixed + each * count
            number += 1
        raise LookupError(f"this kernel has no {name}")


@functools.cache
def _types():
    return _Types()


def function(name):
    """Returns the BTF id by which a program calls a kfunc."""
    return _types().find(FUNCTION, name)[0]


def offset(structure, member):
    """Returns the offset of a member in bytes."""
    types = _types()
    _, at, count, has_widths = types.find(STRUCT, structure)
    for entry in range(at, at + 12 * count, 12):
        called, _, bits = struct.unpack_from("=III", types.data, entry)
        if types.name(called) == member:
            return (bits & 0xFFFFFF if has_widths else bits) // 8
    raise LookupError(f"this kernel's {structure} has no {member}")
