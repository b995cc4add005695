"""Bodies whose every part is different, so that a lost, doubled or moved part changes the hash."""

import hashlib
import random

BLOCK = 1 << 20


def blocks(length, seed=1):
    """Yields `length` bytes in pieces of at most 1 MiB: noise that begins with its own number."""
    noise = random.Random(seed).randbytes(BLOCK)
    for number in range(-(-length // BLOCK)):
        block = number.to_bytes(8, "big") + noise[8:]
        yield block[: min(BLOCK, length - number * BLOCK)]


def write(path, length, seed=1):
    """Writes a file of `blocks` and returns its SHA-256."""
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for block in blocks(length, seed):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def of_file(path):
    """Returns the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
