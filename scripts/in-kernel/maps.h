// The maps that relay.c shares with the verdict (verdict.py), and the counts of the bytes that a
// socket received.
#include <assert.h>
#include <linux/bpf.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef unsigned int u32;

#define PAIRS 512

// The state of the bytes that one socket received. Each word has one writer: the verdict if the
// comment says "by the verdict", otherwise this program.
struct flow {
  u64 limit;     // payload in bytes; the bytes beyond it are never forwarded
  u64 mark;      // no bytes are added to a backlog of this size
  u64 forwarded; // by the verdict: bytes given to the other socket's backlog
  u64 passed;    // by the verdict: bytes left to this program
  u64 written;   // bytes of `passed` that were written; if all, the verdict may forward again
  u64 passes;    // by the verdict: how often it began to pass bytes
  u32 base;      // by the verdict: write_seq of the other socket where the flow began
  u32 next;      // by the verdict: the sequence number that comes next
  u32 known;     // by the verdict: 1 if `base` is, 2 if `next` is
  u32 cuts;      // by the verdict: packets that began with bytes that came before
};
static_assert(sizeof(struct flow) == 64, "verdict.py has these offsets");

static struct flow own_flows[2 * PAIRS], *flows = own_flows;
static int sockets_map, cookies_map;
// The positions in the ring of passes up to which it is filled, and up to which it was read.
static u64 *passes_filled, *passes_read;

static void die(const char *what) {
  perror(what);
  exit(1);
}
// Reads a word that the verdict may store on another processor. The verdict counts a packet before
// the packet moves.
static u64 load(u64 *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static int map_element(int command, int map, const void *key, const void *value) {
  union bpf_attr attr = {.map_fd = map, .key = (u64)key, .value = (u64)value};
  return syscall(SYS_bpf, command, &attr, sizeof attr);
}
static u64 cookie_of(int fd) {
  u64 cookie;
  socklen_t length = sizeof cookie;
  if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length)) die("SO_COOKIE");
  return cookie;
}
// Adds a socket to the maps, the cookie first, so that the flow is known at the first verdict.
// Returns false if the peer has closed: the kernel accepts only ESTABLISHED sockets.
static bool join_maps(int fd, u32 index) {
  u64 cookie = cookie_of(fd);
  if (map_element(BPF_MAP_UPDATE_ELEM, cookies_map, &cookie, &index)) die("joining a cookie");
  if (!map_element(BPF_MAP_UPDATE_ELEM, sockets_map, &index, &fd)) return true;
  if (errno != EOPNOTSUPP) die("joining a socket");
  return false;
}
// Removes the cookie of a socket. Closing the socket removes it from the map of sockets.
static void leave_maps(int fd) {
  u64 cookie = cookie_of(fd);
  map_element(BPF_MAP_DELETE_ELEM, cookies_map, &cookie, NULL);
}

static void *mapped(int fd, size_t bytes, int protection, off_t offset) {
  void *at = mmap(NULL, bytes, protection, MAP_SHARED, fd, offset);
  if (at == MAP_FAILED) die("mmap of a map");
  return at;
}
// Reads the descriptors of the maps that the parent created. Returns that of the ring.
static int take_maps(char **words) {
  int page = sysconf(_SC_PAGESIZE), passes_map = atoi(words[3]);
  sockets_map = atoi(words[0]);
  cookies_map = atoi(words[1]);
  flows = mapped(atoi(words[2]), sizeof own_flows, PROT_READ | PROT_WRITE, 0);
  // BPF_MAP_TYPE_RINGBUF: the first page has the consumer position, the second the producer
  // position.
  passes_read = mapped(passes_map, page, PROT_READ | PROT_WRITE, 0);
  passes_filled = mapped(passes_map, page, PROT_READ, page);
  return passes_map;
}
