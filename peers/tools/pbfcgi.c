// pbfcgi: a FastCGI program on libfcgi.
//   pbfcgi SOCKET THREADS COUNTS
// It serves /n/SIZE on the Unix socket SOCKET with the first SIZE bytes of pborigin's stream, a
// Content-Length, and Cache-Control: no-store. SIZE is 1k, 8k, 64k, 1m or a number of bytes.
// The mapped file COUNTS has two numbers of 64 bits: the requests served, and the sum of the hashes
// of their targets, both counted before the response is sent.
// As usual with libfcgi, a thread serves one connection until the web server closes it. So THREADS
// must be more than the connections that the web server holds open.
#include <fcgiapp.h>
#include <pthread.h>
#include <sys/stat.h>

#include "pbcounts.h"

#define BACKLOG 1024

static struct counts *counts;
static char *body;
static int listener;

static void serve(FCGX_Request *request) {
  const char *target = FCGX_GetParam("REQUEST_URI", request->envp);
  long size = target ? pbsize(target, "/n/") : -1;
  if (size < 0) {
    FCGX_PutS("Status: 404 Not Found\r\nContent-Length: 0\r\n\r\n", request->out);
    return;
  }
  pbcount(counts, target);
  FCGX_FPrintF(request->out, "Content-Type: application/octet-stream\r\n"
    "Content-Length: %ld\r\nCache-Control: no-store\r\n\r\n", size);
  FCGX_PutStr(body, size, request->out);
}
static void *run(void *unused) {
  FCGX_Request request;
  FCGX_InitRequest(&request, listener, 0);
  while (FCGX_Accept_r(&request) == 0) {
    serve(&request);
    FCGX_Finish_r(&request);
  }
  return unused;
}
int main(int argc, char **argv) {
  int threads = argc == 4 ? atoi(argv[2]) : 0;
  if (threads < 1) {
    fprintf(stderr, "pbfcgi: invalid arguments (expected: SOCKET THREADS COUNTS)\n");
    return 2;
  }
  counts = pbcounts(argv[3]);
  pbstream(body = malloc(STREAM));
  FCGX_Init();
  umask(0); // The web server may run as another user.
  listener = FCGX_OpenSocket(argv[1], BACKLOG);
  if (listener < 0) return 1;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 256 << 10);
  for (int i = 1; i < threads; i++) {
    pthread_t thread;
    if (pthread_create(&thread, &small, run, 0)) {
      perror("pthread_create");
      return 1;
    }
  }
  run(0);
  return 1;
}
