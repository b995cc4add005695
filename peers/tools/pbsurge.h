// The objects of SURGE (Barford and Crovella, SIGMETRICS '98) and their popularity: 93 % have sizes
// lognormal(9.357, 1.318), 7 % Pareto(133,000 bytes; 1.1), cut at 1 MiB, the largest measured size;
// 522 MB in all. Like those of pbmix.h they are quantiles in a fixed order. Requests are drawn by
// Zipf's law with exponent 0.9; a requested object has a mean of 41 KB.
#include "pbmix.h"

#define OBJECTS 10000
#define OBJECT_MAX (1u << 20)
#define DRAWS (1u << 20)

static inline void surge_sizes(unsigned sizes[OBJECTS]) {
  const int body = OBJECTS / 100 * 93;
  for (int i = 0; i < OBJECTS; i++) {
    double bytes;
    if (i < body) bytes = exp(9.357 + 1.318 * normal_quantile((i + 0.5) / body));
    else bytes = 133000 * pow(1 - (i - body + 0.5) / (OBJECTS - body), -1 / 1.1);
    sizes[i] = bytes < 1 ? 1 : bytes < OBJECT_MAX ? bytes : OBJECT_MAX;
  }
  mix_order(sizes, OBJECTS);
}

// Fills `draws` with object numbers below OBJECTS: number n with a weight of 1 / (n + 1)^0.9. They
// are drawn before the start and read in turn, so that drawing takes no part in what is measured.
static inline void zipf_draws(unsigned short draws[DRAWS]) {
  static double below[OBJECTS + 1]; // below[n]: the share of the numbers below n
  unsigned long x = 2463534242ul;
  for (int n = 0; n < OBJECTS; n++) below[n + 1] = below[n] + pow(n + 1, -0.9);
  for (unsigned i = 0; i < DRAWS; i++) {
    double at = (mix_next(&x) >> 11) * 0x1p-53 * below[OBJECTS];
    int low = 0, high = OBJECTS;
    while (high - low > 1) {
      int middle = (low + high) / 2;
      if (below[middle] <= at) low = middle;
      else high = middle;
    }
    draws[i] = low;
  }
}
