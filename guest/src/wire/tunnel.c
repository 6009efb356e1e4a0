// Forwards a byte stream to a TCP port on the machine's loopback. After OK, the connection carries no frames.
// Each direction has its own thread. A half-close is forwarded, and an error on either side ends both.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "services.h"

enum { PIECE = 64 * 1024, CONNECT_MS = 5000, PUMP_STACK = 64 * 1024 };

static int connect_to(const struct sockaddr *address, socklen_t length) {
  int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
  if (fd < 0) return -1;
  if (connect(fd, address, length) && errno != EINPROGRESS) return close(fd), -1;
  struct pollfd connected = {.fd = fd, .events = POLLOUT};
  socklen_t size = sizeof error;
  if (poll(&connected, 1, CONNECT_MS) != 1 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) || error)
    return close(fd), -1;
  fcntl(fd, F_SETFL, 0);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  return fd;
}

static int connect_loopback(uint16_t port) {
  struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  int fd = connect_to((struct sockaddr *)&v4, sizeof v4);
  return fd >= 0 ? fd : connect_to((struct sockaddr *)&v6, sizeof v6);
}

struct pump {
  int from, to;
};

static void *pump(void *argument) {
  struct pump *p = argument;
  char *piece = malloc(PIECE);
  for (;;) {
    ssize_t got = piece ? read(p->from, piece, PIECE) : -1;
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) {
      shutdown(p->to, SHUT_WR);
      break;
    }
    if (got < 0 || !write_exactly(p->to, piece, (size_t)got)) {
      shutdown(p->from, SHUT_RDWR);
      shutdown(p->to, SHUT_RDWR);
      break;
    }
  }
  free(piece);
  return NULL;
}

// A tunnel with a silent program does not notice that the host is gone. A read returns the same as after a half-close,
// and no poll inside gVisor distinguishes them. So the thread that finds the host gone ends all tunnels.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tunnel {
  int fd;
  struct tunnel *next;
} *tunnels;

static void enter(struct tunnel *tunnel) {
  pthread_mutex_lock(&lock);
  tunnel->next = tunnels;
  tunnels = tunnel;
  pthread_mutex_unlock(&lock);
}

static void leave(struct tunnel *tunnel) {
  pthread_mutex_lock(&lock);
  struct tunnel **at = &tunnels;
  while (*at != tunnel) at = &(*at)->next;
  *at = tunnel->next;
  pthread_mutex_unlock(&lock);
}

void end_tunnels(void) {
  pthread_mutex_lock(&lock);
  for (struct tunnel *tunnel = tunnels; tunnel; tunnel = tunnel->next) shutdown(tunnel->fd, SHUT_RDWR);
  pthread_mutex_unlock(&lock);
}

void serve_tunnel(int connection, const struct request *request) {
  uint64_t port = request->number[F_PORT];
  if (port < 1 || port > 65535) {
    send_error(connection, "guest_protocol", "port must be 1-65535");
    return;
  }
  int fd = connect_loopback((uint16_t)port);
  if (fd < 0) {
    send_error(connection, "connection_refused", "nothing listens on this port");
    return;
  }
  struct tunnel tunnel = {.fd = fd};
  enter(&tunnel);
  struct pump up = {connection, fd}, down = {fd, connection};
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, PUMP_STACK);
  if (pthread_create(&thread, &attributes, pump, &up)) {
    send_error(connection, "busy", "no thread for a tunnel");
  } else {
    if (!send_empty(connection, OK)) shutdown(fd, SHUT_RDWR);
    pump(&down);
    pthread_join(thread, NULL);
  }
  pthread_attr_destroy(&attributes);
  leave(&tunnel);
  close(fd);
}
