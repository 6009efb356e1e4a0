// kontor-guest SOCKET [SCORE]: PID 1 of every machine. SCORE is the oom_score_adj of its children
// (PROTOCOL.md). kontor-guest capture: see capture.c. Called as sudo: see sudo.h.
//
// PID 1 connects to the host's unix socket and always keeps one idle spare connection. The host uses the spare by
// sending its first byte. The thread that waited on the spare serves one request (PROTOCOL.md), and another thread
// connects the next spare. Idle threads are reused, because a new thread costs half of a small request.
//
// The guest connects to the host, because a checkpoint cannot contain a socket that is bound inside the machine. A
// connection that the host closed before the checkpoint does not prevent it. After a restore, the guest connects again.
//
// An idle guest makes no system call: the dialling thread waits in a read, the other threads wait for their turn to
// dial, and the reaper waits in sigwait. Every process that it starts has its own group. PID 1 reaps every child and
// every orphan.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "capture.h"
#include "cpus.h"
#include "machine.h"
#include "memory.h"
#include "process.h"
#include "services.h"
#include "sudo.h"

#ifndef KONTOR_BUILD
#define KONTOR_BUILD "development"
#endif

enum {
  STREAM_LIMIT = 512,
  RESTING_LIMIT = 8,
  // Pauses between failed dials. Dialling every 5 ms costs 8 % of a core inside gVisor; a pause of 50 ms is not
  // noticeable. The first pause is 2 ms, so that the guest connects at once to a host that returns.
  DIAL_FIRST_MS = 2,
  DIAL_LAST_MS = 50,
  HELD_MS = 1000, // a spare that was open for this long does not count as a failed dial
};

static atomic_int streams;

// The turn to dial. Exactly one of the serving threads has the turn, or `is_free` means that an idle thread may take
// it.
static __thread bool dials;
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static bool is_free;
static int resting;
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static void *work(void *unused);

bool let_another_dial(void) {
  if (!dials) return true;
  pthread_mutex_lock(&turn_lock);
  dials = false;
  if (resting > 0) is_free = true, pthread_cond_signal(&turn);
  else dials = !start_thread(work, NULL);
  pthread_mutex_unlock(&turn_lock);
  return !dials;
}

// Waits for the turn to dial. Returns false if enough other threads wait.
static bool wait_for_turn(void) {
  pthread_mutex_lock(&turn_lock);
  if (resting < RESTING_LIMIT) {
    resting++;
    while (!is_free) pthread_cond_wait(&turn, &turn_lock);
    resting--;
    is_free = false;
    dials = true;
  }
  pthread_mutex_unlock(&turn_lock);
  return dials;
}

static void serve_ping(int connection, const struct request *request) {
  (void)request;
  struct reply reply;
  reply_begin(&reply, PONG);
  reply_number(&reply, F_VERSION, PROTOCOL_VERSION);
  reply_text(&reply, F_BUILD, KONTOR_BUILD);
  send_reply(connection, &reply);
}

static void serve_signal(int connection, const struct request *request) {
  uint64_t signal = request->number[F_SIGNAL], pid = request->number[F_PID];
  if (signal < 1 || signal > 64 || pid > INT32_MAX) send_error(connection, "guest_protocol", "signal or pid is out of range");
  else if (process_signal_pid((pid_t)pid, (int)signal)) send_empty(connection, OK);
  else send_error(connection, "not_found", "no such process");
}

static void serve_any_spawn(int connection, const struct request *request) {
  (request->has[F_COMMAND_ID] ? serve_background : serve_spawn)(connection, request);
}

static void serve_limits(int connection, const struct request *request) {
  limit_cpus(request->number[F_CPUS]);
  serve_limit(connection, request);
}

static void serve_any_blockers(int connection, const struct request *request) {
  (void)request;
  serve_blockers(connection);
}

static void (*const SERVICES[256])(int connection, const struct request *request) = {
    [PING] = serve_ping,
    [CONFIGURE] = serve_configure,
    [SPAWN] = serve_any_spawn,
    [SIGNAL] = serve_signal,
    [LIMIT] = serve_limits,
    [READ] = serve_read,
    [WRITE] = serve_write,
    [LIST] = serve_list,
    [STAT] = serve_stat,
    [MKDIR] = serve_change,
    [MOVE] = serve_change,
    [REMOVE] = serve_change,
    [WATCH] = serve_watch,
    [TUNNEL] = serve_tunnel,
    [COMMAND_LIST] = serve_command,
    [COMMAND_GET] = serve_command,
    [COMMAND_LOGS] = serve_command,
    [COMMAND_KILL] = serve_command,
    [COMMAND_STDIN] = serve_command,
    [COMMAND_RESIZE] = serve_command,
    [BLOCKERS] = serve_any_blockers,
};

static void serve_request(int connection) {
  unsigned char header[HEADER_BYTES];
  struct failure failure;
  if (!read_exactly(connection, header, sizeof header)) return;
  size_t length = get_u32(header);
  if (!SERVICES[header[4]] || length > REQUEST_LIMIT) {
    send_error(connection, "guest_protocol", "unknown or oversized request");
    return;
  }
  // Request and payload are a single allocation: most requests are a few hundred bytes, and a thread's stack is small.
  struct request *request = malloc(sizeof *request + length + 1);
  unsigned char *payload = (unsigned char *)(request + 1);
  if (!request) send_error(connection, "failed", "no memory for the request");
  else if (!read_exactly(connection, payload, length));
  else if (!request_parse(request, header[4], payload, length, &failure)) send_failure(connection, &failure);
  // SPAWN prepares the process before it hands over the turn to dial. Any other request may take long.
  else if (header[4] != SPAWN && !let_another_dial()) send_error(connection, "busy", "no thread for another request");
  else SERVICES[header[4]](connection, request);
  free(request);
}

// Shuts down the sending half, then reads until the host closes. Closing with unread bytes would reset the
// connection and destroy the reply on its way.
static void hang_up(int connection) {
  char rest[4096];
  shutdown(connection, SHUT_WR);
  while (read(connection, rest, sizeof rest) > 0);
  close(connection);
}

static int dial_once(void) {
  int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connection < 0) return -1;
  if (connect(connection, (const struct sockaddr *)&address, sizeof address) == 0) return connection;
  close(connection);
  return -1;
}

// Waits until the host's first byte is available, without reading it. Returns false if the host disconnected.
static bool wait_until_taken(int connection) {
  char first;
  ssize_t got;
  while ((got = recv(connection, &first, 1, MSG_PEEK)) < 0 && errno == EINTR);
  return got == 1;
}

// Returns a connection on which the host has sent a request.
static int dial(void) {
  for (int pause_ms = DIAL_FIRST_MS;;) {
    int connection = dial_once();
    if (connection >= 0) {
      uint64_t since = now_us();
      if (wait_until_taken(connection)) return connection;
      close(connection);
      if (now_us() - since >= HELD_MS * 1000) pause_ms = DIAL_FIRST_MS;
    } else if (errno == ENOENT || errno == ECONNREFUSED) {
      end_tunnels(); // no process listens, so the host has closed every connection
    }
    poll(NULL, 0, pause_ms);
    pause_ms = pause_ms * 2 < DIAL_LAST_MS ? pause_ms * 2 : DIAL_LAST_MS;
  }
}

static void *work(void *unused) {
  (void)unused;
  dials = true;
  do {
    int connection = dial();
    if (atomic_fetch_add(&streams, 1) < STREAM_LIMIT) {
      serve_request(connection);
      hang_up(connection);
    } else {
      send_error(connection, "busy", "too many streams");
      close(connection);
    }
    atomic_fetch_sub(&streams, 1);
  } while (dials || wait_for_turn());
  return NULL;
}

static void ignore(int signal) { (void)signal; }

// Opens descriptors 0 to 2, which the runtime may leave closed, so that no pipe of a child gets their numbers.
static void open_stdio(void) {
  for (int fd; (fd = open("/dev/null", O_RDWR)) >= 0;)
    if (fd > 2) {
      close(fd);
      return;
    }
}

static bool is_called(const char *path, const char *name) {
  const char *last = path ? strrchr(path, '/') : NULL;
  return path && !strcmp(last ? last + 1 : path, name);
}

int main(int count, char **arguments) {
  if (is_called(arguments[0], "sudo")) return sudo_client(count, arguments);
  if (count == 2 && strcmp(arguments[1], "sudo-helper") == 0) return sudo_helper();
  if (count == 2 && strcmp(arguments[1], "capture") == 0) return capture();
  if (count < 2 || count > 3 || strlen(arguments[1]) >= sizeof address.sun_path) {
    fprintf(stderr, "usage: kontor-guest SOCKET [SCORE] | capture\n");
    return 2;
  }
  strcpy(address.sun_path, arguments[1]);
  open_stdio();
  umask(0);
  raise_limits();
  if (count == 3) set_children_oom_score(arguments[2]);

  // Keeps freed blocks of up to 1 MiB for later requests. Mapping and unmapping memory for each request is
  // expensive inside gVisor.
  mallopt(M_MMAP_THRESHOLD, 1024 * 1024);
  mallopt(M_TRIM_THRESHOLD, 4 * 1024 * 1024);
  mallopt(M_ARENA_MAX, 2);
  // Resets the signals that the runtime set: a child undoes only the changes below.
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  // These signals are blocked in every thread, and received here by sigwait. The handlers only stop the kernel from
  // ignoring these signals for PID 1.
  sigset_t waited;
  sigemptyset(&waited);
  sigaddset(&waited, SIGCHLD);
  sigaddset(&waited, SIGTERM);
  sigaddset(&waited, SIGINT);
  sigprocmask(SIG_BLOCK, &waited, NULL);
  signal(SIGCHLD, ignore);
  signal(SIGTERM, ignore);
  signal(SIGINT, ignore);
  signal(SIGPIPE, SIG_IGN);

  if (!start_drainer() || !start_thread(work, NULL)) return 1;
  // A failure is ignored: a machine works without sudo.
  start_sudo();
  for (int signal = 0; signal != SIGTERM && signal != SIGINT; sigwait(&waited, &signal)) reap_children();
  return 0;
}
