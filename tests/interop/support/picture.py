"""PNG pictures of noise, which no compression shortens."""

import random
import struct
import zlib


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write(path, side, seed=1):
    """Writes a picture of `side` by `side` pixels with three bytes each. Returns its length."""
    noise = random.Random(seed)
    rows = b"".join(b"\0" + noise.randbytes(3 * side) for _ in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header)
    data += _chunk(b"IDAT", zlib.compress(rows, 1)) + _chunk(b"IEND", b"")
    path.write_bytes(data)
    return len(data)
