// Shared by pborigin and pbload: the bytes of every body, and the hash of a request target.
#include <stddef.h>

#define STREAM (64u << 20) // the longest body

// Fills the STREAM bytes at `p` with a pseudo-random stream. Every body is the beginning of it.
static inline void pbstream(void *p) {
  unsigned long x = 88172645463325252ul, *words = p;
  for (size_t i = 0; i < STREAM / 8; i++) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    words[i] = x;
  }
}

// FNV-1a of a request target. Client and origin add up the hashes of all requests.
static inline unsigned long long pbhash(const char *p, size_t n) {
  unsigned long long h = 14695981039346656037ull;
  for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)p[i]) * 1099511628211ull;
  return h;
}
