"""How often a body is in a process's memory, counted by physical pages, and how much memory that is.

A body of `marked` bytes names each of its parts. All pages that the process has are read and
searched for those names, so a copy is found wherever it is: in the slab, the heap, a buffer."""

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
    """`length` bytes, a multiple of `PART`, and the name that their parts begin with, before a
    number."""
    dice = random.Random(seed)
    name, noise = dice.randbytes(12), dice.randbytes(PART - 16)
    parts = (name + struct.pack(">I", number) + noise for number in range(length // PART))
    return b"".join(parts), name


class Copies:
    """The copies in memory. `most` and `least` count the copies of the parts that have the most and
    the fewest; `bytes` are those of all copies, `outside` those not in the slab."""

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
        """Bytes that are there once more."""
        return self.bytes - self.present


Mapping = collections.namedtuple("Mapping", "start end identity offset is_slab")
HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ([0-9a-f]+) (\S+) (\d+) *(.*)\n")


def mappings(pid):
    """Those that may be read; not what the kernel maps into every process."""
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            start, end, rights, offset, device, inode, path = HEAD.fullmatch(line).groups()
            if "r" in rights and not path.startswith("[v"):
                identity = (device, inode) if rights.endswith("s") else None
                numbers = int(start, 16), int(end, 16)
                yield Mapping(*numbers, identity, int(offset, 16), path.startswith(SLAB))


def found(pid, mapping, name):
    """The numbers of the parts in a mapping, each with its place: the frame of memory and the byte
    there. Without the right to know frames: the file and offset, or the address."""
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
    """Runs of pages that the process has: nothing else is read, which would make it."""
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
    """Bytes: of the slab's files, by the kernel's count of their blocks; of the slab that are mapped
    (Rss, Pss); of all else that is mapped (Pss)."""

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
