// Sends the output of a process on the connection of its SPAWN request.
//
// A stream has one thread with one poll, and keeps one frame of output in memory. While the host does not read, the
// pipes are not read, and the process blocks on a full pipe. No write blocks, so a timeout or a disconnect takes effect
// at once, even with a slow host. Input is symmetric: while the process does not read, the connection is not read.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "process.h"
#include "services.h"

enum { PIECE = 128 * 1024, INPUT_PIECE = 64 * 1024 };

struct stream {
  int connection; // -1 once the host has disconnected
  struct process *process;
  bool kill_on_disconnect, timed_out, killed;
  uint64_t deadline_us; // 0 for no deadline
  unsigned char *out;   // a frame of output, sent from `out_at` to `out_end`
  size_t out_at, out_end;
  unsigned char *in; // input for the process, written from `in_at` to `in_end`
  size_t in_at, in_end;
  unsigned char header[HEADER_BYTES]; // header of the incoming frame
  size_t header_length;
  uint32_t payload_left;
};

static void close_input(struct stream *s) {
  if (s->process->input >= 0) close(s->process->input);
  s->process->input = -1;
  s->in_at = s->in_end = 0;
}

// Closes the socket at once. A process may run for hours, and an open connection to the host makes a checkpoint fail.
// /dev/null keeps the descriptor's number in use, because the serving thread closes that number in the end.
static void release_socket(int connection) {
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) {
    shutdown(connection, SHUT_RDWR);
    return;
  }
  dup3(null, connection, O_CLOEXEC);
  close(null);
}

static void disconnect(struct stream *s) {
  if (s->connection < 0) return;
  release_socket(s->connection);
  s->connection = -1;
  s->out_at = s->out_end = 0;
  close_input(s);
  if (s->kill_on_disconnect) s->killed |= process_signal(s->process, SIGKILL);
}

static void flush_output(struct stream *s) {
  while (s->connection >= 0 && s->out_at < s->out_end) {
    ssize_t sent = send(s->connection, s->out + s->out_at, s->out_end - s->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) s->out_at += (size_t)sent;
    else if (errno == EAGAIN) return;
    else if (errno != EINTR) disconnect(s);
  }
  s->out_at = s->out_end = 0;
}

static void take_output(struct stream *s, int *pipe, uint8_t type) {
  size_t got = pipe_read(*pipe, s->out + HEADER_BYTES, PIECE);
  if (got == 0) {
    close(*pipe);
    *pipe = -1;
    return;
  }
  if (s->connection < 0) return;
  put_header(s->out, (uint32_t)got, type);
  s->out_at = 0;
  s->out_end = HEADER_BYTES + got;
  flush_output(s);
}

static void flush_input(struct stream *s) {
  while (s->in_at < s->in_end && s->process->input >= 0) {
    ssize_t wrote = write(s->process->input, s->in + s->in_at, s->in_end - s->in_at);
    if (wrote > 0) s->in_at += (size_t)wrote;
    else if (errno == EAGAIN) return;
    else if (errno != EINTR) close_input(s);
  }
  s->in_at = s->in_end = 0;
}

// Reads the next piece from the host: input, the end of input, or an invalid frame.
static void take_input(struct stream *s) {
  bool in_header = s->header_length < HEADER_BYTES;
  unsigned char *into = in_header ? s->header + s->header_length : s->in;
  size_t wanted = in_header ? HEADER_BYTES - s->header_length
                            : (s->payload_left < INPUT_PIECE ? s->payload_left : INPUT_PIECE);
  ssize_t got = recv(s->connection, into, wanted, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return disconnect(s);
  if (in_header) {
    s->header_length += (size_t)got;
    if (s->header_length < HEADER_BYTES) return;
    s->payload_left = get_u32(s->header);
    bool good = (s->header[4] == STDIN && s->payload_left <= FRAME_LIMIT) ||
                (s->header[4] == STDIN_EOF && s->payload_left == 0);
    if (!good) return disconnect(s);
    if (s->header[4] == STDIN_EOF) close_input(s);
  } else {
    s->payload_left -= (uint32_t)got;
    s->in_end = (size_t)got;
    flush_input(s);
  }
  if (s->payload_left == 0) s->header_length = 0;
}

static int time_left_ms(const struct stream *s) {
  if (!s->deadline_us) return -1;
  uint64_t now = now_us();
  if (now >= s->deadline_us) return 0;
  uint64_t left = (s->deadline_us - now) / 1000 + 1;
  return left > 1000000 ? 1000000 : (int)left;
}

static void run(struct stream *s) {
  struct process *p = s->process;
  for (;;) {
    bool full = s->out_at < s->out_end, has_input = s->in_at < s->in_end;
    struct pollfd fds[] = {
        {.fd = p->exit_event, .events = POLLIN},
        {.fd = s->connection, .events = (short)((full ? POLLOUT : 0) | (has_input ? 0 : POLLIN))},
        {.fd = has_input ? p->input : -1, .events = POLLOUT},
        {.fd = full ? -1 : p->output, .events = POLLIN},
        {.fd = full ? -1 : p->error, .events = POLLIN},
    };
    poll(fds, 5, time_left_ms(s));
    if (s->deadline_us && now_us() >= s->deadline_us) {
      s->deadline_us = 0;
      s->timed_out = process_signal(p, SIGKILL);
      s->killed |= s->timed_out;
    }
    if (fds[0].revents) return;
    if (fds[2].revents) flush_input(s);
    if (fds[1].revents & POLLOUT) flush_output(s);
    if (fds[1].revents & POLLIN) take_input(s);
    else if (fds[1].revents & (POLLHUP | POLLERR)) disconnect(s);
    if (fds[3].revents && s->out_at == s->out_end) take_output(s, &p->output, STDOUT);
    if (fds[4].revents && s->out_at == s->out_end) take_output(s, &p->error, STDERR);
  }
}

// Sends only the bytes that were in a pipe when the process ended: its children may write forever.
static void send_rest(struct stream *s, int *pipe, uint8_t type) {
  for (size_t left = pipe_backlog(*pipe); left > 0 && s->connection >= 0;) {
    size_t got = pipe_read(*pipe, s->out + HEADER_BYTES, left < PIECE ? left : PIECE);
    if (got == 0) return;
    left -= got;
    if (!send_prefixed(s->connection, s->out, (uint32_t)got, type)) return disconnect(s);
  }
}

static void finish(struct stream *s) {
  if (s->connection >= 0 && s->out_at < s->out_end &&
      !write_exactly(s->connection, s->out + s->out_at, s->out_end - s->out_at))
    disconnect(s);
  send_rest(s, &s->process->output, STDOUT);
  send_rest(s, &s->process->error, STDERR);
  if (s->connection < 0) return;
  struct reply reply;
  reply_begin(&reply, EXIT);
  reply_exit(&reply, s->process, s->timed_out);
  send_reply(s->connection, &reply);
}

void serve_spawn(int connection, const struct request *request) {
  struct failure failure;
  struct stream s = {.connection = connection, .kill_on_disconnect = request->number[F_KILL_ON_DISCONNECT]};
  s.out = malloc(HEADER_BYTES + PIECE);
  s.in = malloc(INPUT_PIECE);
  if (request->has[F_COLS]) {
    send_error(connection, "guest_protocol", "a terminal needs a command_id");
  } else if (!s.out || !s.in) {
    send_error(connection, "too_many_processes", "no memory for the output of the process");
  } else if (!process_start(request, &s.process, &failure)) {
    send_failure(connection, &failure);
  } else {
    uint64_t timeout_ms = request->number[F_TIMEOUT_MS];
    if (timeout_ms) s.deadline_us = s.process->started_us + timeout_ms * 1000;
    struct reply reply;
    reply_begin(&reply, STARTED);
    reply_number(&reply, F_PID, (uint64_t)s.process->pid);
    if (!send_reply(connection, &reply)) disconnect(&s);
    run(&s);
    if (s.killed) process_kill_rest(s.process);
    finish(&s);
    process_release(s.process);
  }
  free(s.out);
  free(s.in);
}
