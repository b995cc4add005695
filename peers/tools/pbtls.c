// pbtls: TLS through a tunnel, as for a browser's https request; client and server.
//   pbtls serve PORT CERTIFICATE KEY
//   pbtls load PROXY_PORT ORIGIN_PORT BYTES
// A request is a connection: CONNECT to 127.0.0.1:ORIGIN_PORT through the proxy (PROXY_PORT 0:
// none, straight to the origin), a full handshake of TLS 1.3, a line with the number of bytes, that
// many bytes of pborigin's stream, and the end. No session is resumed.
// The load is driven by stdin as pbload -S is: before each phase it prints "warm" on stderr and
// waits for a line "RATE SECONDS"; then comes one JSON line on stdout. Request i is due at
// start+i/RATE and its latency counts from then. There is one request at a time, on both ends: RATE
// must be far below their capacity; max_us shows whether it is. RATE 0: one after the other.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "pbstream.h"

typedef unsigned long long u64;

#define BYTES_MAX (1 << 20)
#define PHASE_MAX 200000      // requests of a phase
#define ERRORS_MAX 20
#define LATE_NS 30000000ull   // a longer response waited for a delayed ACK (40 ms)

static unsigned char *stream;
static u64 latencies[PHASE_MAX];

static void fail(const char *what) {
  fprintf(stderr, "pbtls: %s\n", what);
  exit(1);
}
static u64 now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static struct sockaddr_in loopback(int port) {
  return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port),
    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}
// A peer that is silent for five seconds has failed, so that nothing here waits forever.
static void set_up(int fd) {
  struct timeval limit = {5, 0};
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static void respond(SSL *ssl) {
  char line[32];
  int n = SSL_accept(ssl) == 1 ? SSL_read(ssl, line, sizeof line - 1) : 0;
  if (n <= 0) return;
  line[n] = 0;
  long bytes = atol(line);
  if (bytes < 1 || bytes > BYTES_MAX) return;
  if (SSL_write(ssl, stream, bytes) != bytes) return;
  SSL_shutdown(ssl);
  // The client closes first, so that the proxy sees the end of the client's side before this one's.
  while (SSL_read(ssl, line, sizeof line) > 0);
}
static void serve(int port, const char *certificate, const char *key) {
  SSL_CTX *context = SSL_CTX_new(TLS_server_method());
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_num_tickets(context, 0);
  if (SSL_CTX_use_certificate_file(context, certificate, SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1) fail("certificate or key");
  struct sockaddr_in address = loopback(port);
  int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) fail("listen");
  for (;;) {
    int fd = accept(listener, 0, 0);
    if (fd < 0) continue;
    set_up(fd);
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    respond(ssl);
    SSL_free(ssl);
    close(fd);
  }
}

// Connects, through the proxy if there is one. Returns -1 on failure.
static int dial(int proxy, int origin) {
  struct sockaddr_in address = loopback(proxy ? proxy : origin);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  set_up(fd);
  if (connect(fd, (void *)&address, sizeof address)) goto failed;
  if (!proxy) return fd;
  char text[1024];
  int n = snprintf(text, sizeof text,
    "CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", origin, origin);
  if (send(fd, text, n, MSG_NOSIGNAL) != n) goto failed;
  // A TLS client sends first, so no bytes follow the response header section.
  for (int have = 0; have < (int)sizeof text - 1; have += n) {
    n = recv(fd, text + have, sizeof text - 1 - have, 0);
    if (n <= 0) goto failed;
    text[have + n] = 0;
    if (!strstr(text, "\r\n\r\n")) continue;
    if (have + n < 12 || memcmp(text + 9, "200", 3)) break;
    return fd;
  }
failed:
  close(fd);
  return -1;
}
// Makes one request. Returns whether each byte of the response was right.
static bool make_request(SSL_CTX *context, int proxy, int origin, int bytes) {
  static unsigned char got[BYTES_MAX];
  int fd = dial(proxy, origin), have = 0;
  if (fd < 0) return false;
  SSL *ssl = SSL_new(context);
  SSL_set_fd(ssl, fd);
  char line[32];
  int n = snprintf(line, sizeof line, "%d\n", bytes);
  if (SSL_connect(ssl) == 1 && SSL_write(ssl, line, n) == n)
    while (have < bytes && (n = SSL_read(ssl, got + have, bytes - have)) > 0) have += n;
  bool right = have == bytes && !memcmp(got, stream, bytes) && SSL_read(ssl, line, 1) == 0;
  SSL_shutdown(ssl);
  SSL_free(ssl);
  close(fd);
  return right;
}

static double seconds_of(struct timeval t) { return t.tv_sec + t.tv_usec / 1e6; }
static int by_value(const void *a, const void *b) {
  u64 x = *(const u64 *)a, y = *(const u64 *)b;
  return x < y ? -1 : x > y;
}
static void wait_until(u64 due) {
  struct timespec t = {due / 1000000000, due % 1000000000};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0);
}
// Prints the results of a phase with `done` good requests.
static void print_results(u64 done, u64 errors, u64 late, u64 sum, double seconds, double cpu,
  int bytes) {
  qsort(latencies, done, sizeof *latencies, by_value);
  u64 last = done ? done - 1 : 0;
  printf("{\"total\":%llu,\"seconds\":%.4f,\"rps\":%.1f,\"errors\":%llu,\"bytes\":%llu,"
    "\"mean_us\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"late\":%llu,"
    "\"client_cpu_s\":%.4f}\n", done, seconds, done / seconds, errors, done * bytes,
    done ? sum / 1e3 / done : 0, latencies[done / 2] / 1e3, latencies[last * 99 / 100] / 1e3,
    latencies[last] / 1e3, late, cpu);
  fflush(stdout);
}
static void phase(SSL_CTX *context, int proxy, int origin, int bytes, double rate, double seconds) {
  struct rusage before, after;
  u64 first = now(), end = first + seconds * 1e9, step = rate > 0 ? 1e9 / rate : 0;
  u64 done = 0, errors = 0, late = 0, sum = 0;
  getrusage(RUSAGE_SELF, &before);
  for (u64 due = first; due < end && done < PHASE_MAX; due = step ? due + step : now()) {
    if (due > now()) wait_until(due);
    if (!make_request(context, proxy, origin, bytes)) {
      if (++errors > ERRORS_MAX) fail("too many errors");
      continue;
    }
    u64 latency = now() - due;
    latencies[done++] = latency;
    sum += latency;
    late += latency > LATE_NS;
  }
  getrusage(RUSAGE_SELF, &after);
  double cpu = seconds_of(after.ru_utime) - seconds_of(before.ru_utime) +
    seconds_of(after.ru_stime) - seconds_of(before.ru_stime);
  print_results(done, errors, late, sum, (now() - first) / 1e9, cpu, bytes);
}
static void load(int proxy, int origin, int bytes) {
  if (bytes < 1 || bytes > BYTES_MAX) fail("BYTES");
  SSL_CTX *context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  char line[64];
  double rate, seconds;
  for (;;) { // the end of the input ends the program
    fprintf(stderr, "warm\n");
    ssize_t n = read(0, line, sizeof line - 1);
    if (n <= 0) return;
    line[n] = 0;
    if (sscanf(line, "%lf %lf", &rate, &seconds) != 2) fail("RATE SECONDS");
    phase(context, proxy, origin, bytes, rate, seconds);
  }
}

int main(int argc, char **argv) {
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_TIMERSLACK, 1);
  pbstream(stream = malloc(STREAM));
  if (argc == 5 && !strcmp(argv[1], "serve")) serve(atoi(argv[2]), argv[3], argv[4]);
  else if (argc == 5 && !strcmp(argv[1], "load"))
    load(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
  else fail("serve PORT CERTIFICATE KEY, or load PROXY_PORT ORIGIN_PORT BYTES");
}
