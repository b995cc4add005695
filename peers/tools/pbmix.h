// The sizes of PolyMix-4 (its content types, web-polygraph workloads/include/contents.pg): a fixed
// list of MIX sizes in a fixed order, the same for every peer. 65 % images exp(4.5 KB), 15 % HTML
// exp(8.5 KB), 0.5 % downloads logn(300 KB, 300 KB), the rest logn(25 KB, 10 KB); the mean is about
// 10.5 KB. Each type gives the quantiles of its distribution, so the list depends on no seed.
#ifndef PBMIX_H
#define PBMIX_H
#include <math.h>

#define MIX 4096

// The inverse of the normal distribution function by bisection; it is only used before the start.
static inline double normal_quantile(double p) {
  double low = -9, high = 9;
  for (int i = 0; i < 60; i++) {
    double middle = (low + high) / 2;
    if (erfc(-middle / sqrt(2)) / 2 < p) low = middle;
    else high = middle;
  }
  return low;
}

// logn(mean, sd) names the mean and the deviation of the variable itself, in KB.
static inline double lognormal_quantile(double p, double mean, double sd) {
  double variance = log(1 + sd * sd / (mean * mean));
  return exp(log(mean) - variance / 2 + sqrt(variance) * normal_quantile(p));
}

// Returns the next number of a fixed pseudo-random sequence; `x` is never 0.
static inline unsigned long mix_next(unsigned long *x) {
  *x ^= *x << 13;
  *x ^= *x >> 7;
  return *x ^= *x << 17;
}

// Shuffles `count` sizes into an order that is always the same.
static inline void mix_order(unsigned sizes[], int count) {
  unsigned long x = 88172645463325252ul;
  for (int i = count - 1; i > 0; i--) {
    int j = mix_next(&x) % (i + 1);
    unsigned other = sizes[i];
    sizes[i] = sizes[j];
    sizes[j] = other;
  }
}

static inline void mix_sizes(unsigned sizes[MIX]) {
  const int count[4] = {2662, 614, 20, 800};
  int n = 0;
  for (int type = 0; type < 4; type++)
    for (int i = 0; i < count[type]; i++) {
      double p = (i + 0.5) / count[type], kb = 0;
      if (type == 0) kb = -4.5 * log(1 - p);
      else if (type == 1) kb = -8.5 * log(1 - p);
      else if (type == 2) kb = lognormal_quantile(p, 300, 300);
      else kb = lognormal_quantile(p, 25, 10);
      sizes[n++] = 1 + kb * 1024;
    }
  mix_order(sizes, MIX);
}

#endif
