"""Counts the copies of a body in the physical memory of a process, and their bytes.

Each part of a `marked` body begins with a name and a number. All present pages of the process are
searched for these names, so a copy is found in the slab, the heap or any buffer."""

import collections
import mmap
import os
import random
import re
import struct

PART = 1024
PAGE = mmap.PAGESIZE
SLAB = "/memfd:iolite"
READ_BYTES = 4 << 20
PRESENT = 1 << 63
FRAME = (1 << 55) - 1


def marked(length, seed):
    """Returns a body of `length` bytes, a multiple of `PART`, and the name with which each part
    begins."""
    dice = random.Random(seed)
    name, noise = dice.randbytes(12), dice.randbytes(PART - 16)
    parts = (name + struct.pack(">I", number) + noise for number in range(length // PART))
    return b"".join(parts), name


class Copies:
    """The copies in memory. `most` and `least` are the highest and lowest number of copies of a
    part. `bytes` counts all copies, `outside` those that are not in the slab."""

    def __init__(self, pid, name, parts):
        places = collections.defaultdict(set)
        outside = set()
        for mapping in mappings(pid):
            for number, place in found(pid, mapping, name):
                places[number].add(place)
                if not mapping.is_slab:
                    outside.add(place)
        counts = [len(places[number]) for number in range(parts)]
        self.least, self.most = min(counts), max(counts)
        self.bytes, self.outside = sum(counts) * PART, len(outside) * PART
        self.present = sum(count > 0 for count in counts) * PART
        whole = {frame for places in places.values() for frame, _ in places}
        self.frames = len(whole)

    @property
    def second(self):
        """Bytes of all copies beyond the first one."""
        return self.bytes - self.present


Mapping = collections.namedtuple("Mapping", "start end identity offset is_slab")
HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ([0-9a-f]+) (\S+) (\d+) *(.*)\n")


def mappings(pid):
    """Yields the readable mappings of a process, without those that the kernel adds to each
    process."""
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            start, end, rights, offset, device, inode, path = HEAD.fullmatch(line).groups()
            if "r" in rights and not path.startswith("[v"):
                identity = (device, inode) if rights.endswith("s") else None
                numbers = int(start, 16), int(end, 16)
                yield Mapping(*numbers, identity, int(offset, 16), path.startswith(SLAB))


def found(pid, mapping, name):
    """Yields the number of each part in a mapping, and its place: page frame and offset. Without
    the privilege to read frames, the place is the file and offset, or the address."""
    with open(f"/proc/{pid}/pagemap", "rb") as pagemap, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for first, count, frames in present(pagemap, mapping):
            content = os.pread(memory.fileno(), count * PAGE, first)
            at = content.find(name)
            while at >= 0:
                number = content[at + len(name): at + len(name) + 4]
                if len(number) == 4:
                    address = first + at
                    frame = frames[at // PAGE] & FRAME
                    if not frame and mapping.identity:
                        page = (address - mapping.start + mapping.offset) // PAGE
                        frame = (*mapping.identity, page)
                    place = (frame or ("at", address // PAGE)), address % PAGE
                    yield int.from_bytes(number, "big"), place
                at = content.find(name, at + 1)


def present(pagemap, mapping):
    """Yields runs of present pages. Reading an absent page would allocate it."""
    for start in range(mapping.start, mapping.end, READ_BYTES):
        count = (min(mapping.end, start + READ_BYTES) - start) // PAGE
        entries = os.pread(pagemap.fileno(), count * 8, start // PAGE * 8)
        entries = struct.unpack(f"{len(entries) // 8}Q", entries)
        run = 0
        for at in range(len(entries) + 1):
            if at < len(entries) and entries[at] & PRESENT:
                continue
            if at > run:
                yield start + run * PAGE, at - run, entries[run:at]
            run = at + 1


class Memory:
    """Memory of a process in bytes. `files`: blocks of the slab's files. `slab_rss` and `slab_pss`:
    mapped slab. `rest_pss`: all other mappings."""

    def __init__(self, pid):
        self.slab_rss = self.slab_pss = self.rest_pss = 0
        with open(f"/proc/{pid}/smaps") as file:
            for line in file:
                if head := HEAD.fullmatch(line):
                    is_slab = head[7].startswith(SLAB)
                    continue
                field, value = line.split()[:2]
                if field == "Rss:" and is_slab:
                    self.slab_rss += int(value) << 10
                elif field == "Pss:" and is_slab:
                    self.slab_pss += int(value) << 10
                elif field == "Pss:":
                    self.rest_pss += int(value) << 10
        files = {}
        for number in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{number}"
            try:
                if os.readlink(path).startswith(SLAB):
                    status = os.stat(path)
                    files[status.st_ino] = status.st_blocks * 512
            except FileNotFoundError:
                """Closed meanwhile."""
        self.files = sum(files.values())

    def line(self):
        figures = self.files, self.slab_rss, self.slab_pss, self.rest_pss
        return " | ".join(f"{bytes / (1 << 20):.1f}" for bytes in figures)
