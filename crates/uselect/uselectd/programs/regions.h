// What the programs keep: which sockets are tracked and as what, and where the memory of each
// process is.
#ifndef REGIONS_H
#define REGIONS_H

#include "kernel.h"
#include "layout.h"

#define MASK (USELECT_SOCKETS - 1)
// A writer that finds its value outdated writes again. More often than this only when others write
// at the same time, and those look again themselves.
#define TRIES 8

// What is kept with a socket.
struct tracked {
    __u64 identity;
    // What had arrived when that was last told of: arrived().
    __u64 arrived;
    __u32 region;
    __u32 index;
    __u32 generation;
    // The state that was announced last. The socket's own is stored after the announcement, so who
    // computes from that could undo what the announcement has just written.
    __u32 state;
    // It has failed, and the kernel shuts both directions down right after the announcement.
    __u32 is_over;
    // Bits are only set; the process clears them.
    __u32 is_lean;
    // What the last look of a sweep has doubted: fingerprint(), which is never 0. 0: nothing.
    __u64 doubted;
};
struct process {
    __u64 identity;
    __u32 region;
    __u32 is_lean;
    // Which they were when it registered.
    __u32 user;
    __u32 group;
};

struct {
    NUMBER(type, MAP_SK_STORAGE);
    NUMBER(map_flags, NO_PREALLOC);
    TYPE(key, int);
    TYPE(value, struct tracked);
} sockets SEC(".maps");
// Sockets that are to be looked at again soon. One that finds no place here is with the next sweep.
struct {
    NUMBER(type, MAP_SK_STORAGE);
    NUMBER(map_flags, NO_PREALLOC);
    TYPE(key, int);
    TYPE(value, __u8);
} doubted SEC(".maps");
// By process id: its registration.
struct {
    NUMBER(type, MAP_HASH);
    NUMBER(max_entries, USELECT_REGIONS);
    TYPE(key, __u32);
    TYPE(value, struct process);
} processes SEC(".maps");

// Sizes, not types: of what is named inside a map of maps the compiler describes only the name.
struct shown_map {
    NUMBER(type, MAP_ARRAY);
    NUMBER(map_flags, MMAPABLE);
    NUMBER(max_entries, 1);
    NUMBER(key_size, sizeof(__u32));
    NUMBER(value_size, sizeof(struct uselect_shown));
};
struct own_map {
    NUMBER(type, MAP_ARRAY);
    NUMBER(map_flags, MMAPABLE);
    NUMBER(max_entries, 1);
    NUMBER(key_size, sizeof(__u32));
    NUMBER(value_size, sizeof(struct uselect_own));
};
struct ring_map {
    NUMBER(type, MAP_RINGBUF);
    NUMBER(max_entries, 4096);
};
// By region. Arrays, whose lookup is a load and a comparison; `identity` says whose it is.
struct {
    NUMBER(type, MAP_ARRAY_OF_MAPS);
    NUMBER(max_entries, USELECT_REGIONS);
    TYPE(key, __u32);
    struct shown_map *values[];
} shown_maps SEC(".maps");
struct {
    NUMBER(type, MAP_ARRAY_OF_MAPS);
    NUMBER(max_entries, USELECT_REGIONS);
    TYPE(key, __u32);
    struct own_map *values[];
} own_maps SEC(".maps");
// By region * USELECT_SLEEPERS + sleeper.
struct {
    NUMBER(type, MAP_ARRAY_OF_MAPS);
    NUMBER(max_entries, USELECT_REGIONS * USELECT_SLEEPERS);
    TYPE(key, __u32);
    struct ring_map *values[];
} rings SEC(".maps");

INLINE struct uselect_shown *shown_of(__u32 region, __u64 identity)
{
    void *map = map_lookup(&shown_maps, &region);
    __u32 zero = 0;
    if (!map)
        return 0;
    struct uselect_shown *shown = map_lookup(map, &zero);
    return shown && shown->identity == identity ? shown : 0;
}

INLINE struct uselect_own *own_of(__u32 region)
{
    void *map = map_lookup(&own_maps, &region);
    __u32 zero = 0;
    return map ? map_lookup(map, &zero) : 0;
}

#endif
