// The maps: tracked sockets, registered processes, and the memory of each process.
#ifndef REGIONS_H
#define REGIONS_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

#include "layout.h"
#include "macros.h"

#define INDEX_MASK (USELECT_SOCKETS - 1)
// A program computes a value again if the value was outdated when it was stored. It needs more
// rounds than this only if other programs write at the same time, and those compute the value again
// too.
#define UPDATE_ROUNDS_MAX 8

// The storage of a tracked socket.
struct tracked {
    // The identity of the region; 0 while reassign() changes the other fields.
    __u64 identity;
    // arrival_stamp() at the last arrival that was reported.
    __u64 arrival_stamp;
    __u32 region;
    __u32 index;
    __u32 generation;
    // The TCP state that was announced last. The kernel stores the state of the socket after the
    // announcement, so a program that computes from the stored state could undo what the
    // announcement has just written.
    __u32 state;
    // The connection has failed, and the kernel shuts down both directions right after the
    // announcement.
    __u32 has_failed;
    // Lean mode: programs only set bits, and the process clears them.
    __u32 is_lean;
    // The fingerprint() with which the last sweep found a mismatch, never 0; 0 if it found none.
    __u64 suspect;
};

// The registration of a process, or the placeholder of one that has only connected.
struct process {
    __u64 identity;
    __u32 region;
    __u32 is_lean;
    // The effective user and group at connect(2).
    __u32 uid;
    __u32 gid;
};

struct {
    __uint(type, BPF_MAP_TYPE_SK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct tracked);
} sockets SEC(".maps");

// Sockets to check again soon. If the kernel has no memory for an entry, the next sweep checks the
// socket.
struct {
    __uint(type, BPF_MAP_TYPE_SK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, __u8);
} suspects SEC(".maps");

// Registrations by process id.
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, USELECT_REGIONS);
    __type(key, __u32);
    __type(value, struct process);
} processes SEC(".maps");

// Sizes instead of types: for a map that is declared inside a map of maps, clang 14 writes only the
// names of structures to BTF.
struct read_only_map {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, sizeof(struct uselect_read_only_pages));
};
struct writable_map {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, sizeof(struct uselect_writable_pages));
};
struct ring_map {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
};

// The memory of each process, by region. These are arrays because a lookup in an array is a load
// and a comparison. `identity` shows whether the memory still belongs to the process.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, USELECT_REGIONS);
    __type(key, __u32);
    __array(values, struct read_only_map);
} read_only_maps SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, USELECT_REGIONS);
    __type(key, __u32);
    __array(values, struct writable_map);
} writable_maps SEC(".maps");

// Ring buffers by region * USELECT_SLEEPERS + sleeper.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, USELECT_REGIONS * USELECT_SLEEPERS);
    __type(key, __u32);
    __array(values, struct ring_map);
} rings SEC(".maps");

static __always_inline struct uselect_read_only_pages *lookup_ro_pages(__u32 region, __u64 identity)
{
    void *map = bpf_map_lookup_elem(&read_only_maps, &region);
    __u32 zero = 0;
    if (!map)
        return NULL;
    struct uselect_read_only_pages *ro_pages = bpf_map_lookup_elem(map, &zero);
    return ro_pages && ro_pages->identity == identity ? ro_pages : NULL;
}

static __always_inline struct uselect_writable_pages *lookup_rw_pages(__u32 region)
{
    void *map = bpf_map_lookup_elem(&writable_maps, &region);
    __u32 zero = 0;
    return map ? bpf_map_lookup_elem(map, &zero) : NULL;
}

#endif
