// Background commands: processes without a connection. A ring keeps their output. Any request can read it
// from any offset, during the run and afterwards.
//
// A single lock guards the list and its commands. A command is freed when the list, its own thread and every
// request that uses it have released it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.h"
#include "ring.h"
#include "services.h"

enum {
  FINISHED_BYTES = 64 * 1024 * 1024, // limit of the rings of all finished commands; the newest is always kept
  FINISHED_LIMIT = 100,
  RUNNING_LIMIT = 128,
  TERMINAL_LIMIT = 16,
  FOLLOWER_LIMIT = 16,
  KILL_AFTER_US = 5 * 1000 * 1000,
  LEAD_LIMIT = 256 * 1024, // number of bytes by which a terminal's output may lead its slowest reader
  LAST_OUTPUT_LIMIT = 1024 * 1024,
  ID_LIMIT = 64,
  TAG_LIMIT = 256,
  TEXT_LIMIT = 4096,
};

struct command {
  struct command *next;
  char id[ID_LIMIT + 1], tag[TAG_LIMIT + 1], text[TEXT_LIMIT];
  int references;
  struct process *process; // NULL once the process has ended
  pid_t pid;
  int wake; // an eventfd, after which the command's thread reads kill_at_us again
  bool kill_asked, timed_out, killed, out_of_memory;
  uint64_t timeout_at_us, kill_at_us; // 0 for no deadline
  uint64_t started_ms, ended_ms;
  int exit_code, exit_signal; // -1 if the command ended with the other of the two
  struct ring ring;
  int followers[FOLLOWER_LIMIT]; // eventfds of requests that wait for output; -1 is a free entry
  uint64_t follower_offsets[FOLLOWER_LIMIT]; // offset up to which each follower has read
  bool on_terminal, held; // held: its output is not read at present, because a reader is too far behind
  unsigned short cols, rows;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct command *commands; // newest first

// ---- the list

static void release_locked(struct command *c) {
  if (--c->references > 0) return;
  close(c->wake);
  ring_free(&c->ring);
  free(c);
}

static void let_go(struct command *c) {
  pthread_mutex_lock(&lock);
  release_locked(c);
  pthread_mutex_unlock(&lock);
}

static struct command *find_locked(const char *id) {
  for (struct command *c = commands; c; c = c->next)
    if (!strcmp(c->id, id)) return c;
  return NULL;
}

// Removes finished commands beyond the limits, the oldest first.
static void prune_locked(void) {
  size_t bytes = 0, count = 0;
  for (struct command **at = &commands; *at;) {
    struct command *c = *at;
    if (!c->process && c->pid) {
      bytes += c->ring.capacity;
      if (++count > 1 && (count > FINISHED_LIMIT || bytes > FINISHED_BYTES)) {
        *at = c->next;
        release_locked(c);
        continue;
      }
    }
    at = &c->next;
  }
}

static void notify_locked(struct command *c) {
  for (int i = 0; i < FOLLOWER_LIMIT; i++)
    if (c->followers[i] >= 0) eventfd_write(c->followers[i], 1);
}

// ---- the thread of a command

static void keep(struct command *c, uint8_t stream, const unsigned char *bytes, size_t length) {
  pthread_mutex_lock(&lock);
  ring_append(&c->ring, stream, bytes, (uint32_t)length);
  notify_locked(c);
  pthread_mutex_unlock(&lock);
}

static void take_output(struct command *c, int *pipe, uint8_t stream, unsigned char *bytes) {
  size_t got = pipe_read(*pipe, bytes, RECORD_LIMIT);
  if (got > 0) return keep(c, stream, bytes, got);
  close(*pipe);
  *pipe = -1;
}

static void take_rest(struct command *c, int *pipe, uint8_t stream, unsigned char *bytes) {
  for (size_t left = pipe_backlog(*pipe); left > 0;) {
    size_t got = pipe_read(*pipe, bytes, left < RECORD_LIMIT ? left : RECORD_LIMIT);
    if (got == 0) return;
    keep(c, stream, bytes, got);
    left -= got;
  }
}

// Reads the last output of a terminal, until none arrives for a moment. Inside gVisor, output is available at
// once; on Linux, a moment later.
static void read_last_output(struct command *c, int terminal, unsigned char *bytes) {
  enum { MOMENT_MS = 10 };
  struct pollfd there = {.fd = terminal, .events = POLLIN};
  for (size_t left = LAST_OUTPUT_LIMIT; left > 0 && poll(&there, 1, MOMENT_MS) == 1;) {
    size_t got = pipe_read(terminal, bytes, left < RECORD_LIMIT ? left : RECORD_LIMIT);
    if (got == 0) return;
    keep(c, 1, bytes, got);
    left -= got;
  }
}

// Returns whether to stop reading a terminal, because a reader is behind. A slow reader then sees all output, and
// Ctrl-C acts on what is on the screen. Without a reader the command continues, and the ring keeps the last output.
static bool is_held(struct command *c) {
  if (!c->on_terminal) return false;
  pthread_mutex_lock(&lock);
  c->held = false;
  for (int i = 0; i < FOLLOWER_LIMIT; i++)
    c->held |= c->followers[i] >= 0 && c->ring.written > LEAD_LIMIT && c->follower_offsets[i] < c->ring.written - LEAD_LIMIT;
  bool held = c->held;
  pthread_mutex_unlock(&lock);
  return held;
}

// Kills a command whose deadline has passed. Returns the time in ms until the next check.
static int check_deadlines(struct command *c) {
  uint64_t now = now_us(), next = 0;
  pthread_mutex_lock(&lock);
  uint64_t *due[] = {&c->timeout_at_us, &c->kill_at_us};
  for (int i = 0; i < 2; i++) {
    if (*due[i] && now >= *due[i]) {
      *due[i] = 0;
      bool killed = process_signal(c->process, SIGKILL);
      if (i == 0) c->timed_out = killed;
      c->killed = true;
    }
    if (*due[i] && (!next || *due[i] < next)) next = *due[i];
  }
  pthread_mutex_unlock(&lock);
  if (!next) return -1;
  return next - now > 1000000000 ? 1000000 : (int)((next - now) / 1000 + 1);
}

static void finish(struct command *c) {
  struct process *process = c->process;
  pthread_mutex_lock(&lock);
  c->exit_signal = WIFSIGNALED(process->status) ? WTERMSIG(process->status) : -1;
  c->exit_code = WIFSIGNALED(process->status) ? -1 : WEXITSTATUS(process->status);
  c->ended_ms = now_ms();
  c->out_of_memory = process->out_of_memory;
  c->process = NULL;
  process_release(process);
  notify_locked(c);
  prune_locked();
  release_locked(c);
  pthread_mutex_unlock(&lock);
}

static void *run(void *argument) {
  struct command *c = argument;
  struct process *p = c->process;
  // Without memory for a large buffer, the command continues with small pieces.
  unsigned char *bytes = malloc(RECORD_LIMIT);
  while (!bytes && poll(NULL, 0, 50) == 0) bytes = malloc(RECORD_LIMIT);
  for (;;) {
    struct pollfd fds[] = {{.fd = p->exit_event, .events = POLLIN},
                           {.fd = c->wake, .events = POLLIN},
                           {.fd = is_held(c) ? -1 : p->output, .events = POLLIN},
                           {.fd = p->error, .events = POLLIN}};
    poll(fds, 4, check_deadlines(c));
    eventfd_t count;
    if (fds[0].revents) break;
    if (fds[1].revents) eventfd_read(c->wake, &count);
    if (fds[2].revents) take_output(c, &p->output, 1, bytes);
    if (fds[3].revents) take_output(c, &p->error, 2, bytes);
  }
  if (c->killed) process_kill_rest(p);
  if (c->on_terminal) {
    read_last_output(c, p->output, bytes);
  } else {
    take_rest(c, &p->output, 1, bytes);
    take_rest(c, &p->error, 2, bytes);
  }
  free(bytes);
  finish(c);
  return NULL;
}

// ---- start

static void describe(struct command *c, const struct request *request) {
  size_t at = 0;
  if (request->has[F_SHELL]) snprintf(c->text, sizeof c->text, "%s", request->text[F_SHELL]);
  for (size_t i = 0; i < request->argv_count && at < sizeof c->text; i++)
    at += (size_t)snprintf(c->text + at, sizeof c->text - at, "%s%s", i ? " " : "", request->argv[i]);
}

// Reserves an entry in the list before the process starts, so that two starts with the same id cannot both succeed.
static struct command *reserve(const struct request *request, struct failure *failure) {
  const char *id = request->text[F_COMMAND_ID], *tag = request->has[F_TAG] ? request->text[F_TAG] : "";
  struct command *c = NULL;
  int running = 0, terminals = 0;
  bool on_terminal = request->has[F_COLS] && request->has[F_ROWS];
  if (!*id || strlen(id) > ID_LIMIT || strlen(tag) > TAG_LIMIT) {
    fail(failure, "guest_protocol", "a command id has 1-%d bytes, a tag at most %d", ID_LIMIT, TAG_LIMIT);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  for (struct command *other = commands; other; other = other->next) {
    // A command that is starting has no process yet, but counts as running.
    bool runs = other->process || !other->pid;
    running += runs;
    terminals += runs && other->on_terminal;
  }
  if (on_terminal && terminals >= TERMINAL_LIMIT)
    fail(failure, "too_many_processes", "%d terminals are open", terminals);
  else if (find_locked(id)) fail(failure, "exists", "command %s exists", id);
  else if (running >= RUNNING_LIMIT || !(c = calloc(1, sizeof *c)))
    fail(failure, "too_many_processes", "%d background commands are running", running);
  if (c) {
    strcpy(c->id, id);
    strcpy(c->tag, tag);
    describe(c, request);
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->references = 2;
    c->exit_code = c->exit_signal = -1;
    c->on_terminal = on_terminal;
    c->cols = (unsigned short)request->number[F_COLS];
    c->rows = (unsigned short)request->number[F_ROWS];
    for (int i = 0; i < FOLLOWER_LIMIT; i++) c->followers[i] = -1;
    c->next = commands;
    commands = c;
  }
  pthread_mutex_unlock(&lock);
  return c;
}

static void unreserve(struct command *c) {
  pthread_mutex_lock(&lock);
  for (struct command **at = &commands; *at; at = &(*at)->next)
    if (*at == c) {
      *at = c->next;
      c->references--; // the list's reference; the reference of the thread that never started is released below
      break;
    }
  release_locked(c);
  pthread_mutex_unlock(&lock);
}

void serve_background(int connection, const struct request *request) {
  struct failure failure;
  struct process *process;
  struct command *c = reserve(request, &failure);
  if (!c) {
    send_failure(connection, &failure);
    return;
  }
  c->started_ms = now_ms();
  if (!process_start(request, &process, &failure)) {
    unreserve(c);
    send_failure(connection, &failure);
    return;
  }
  uint64_t timeout_ms = request->number[F_TIMEOUT_MS];
  struct reply reply;
  reply_begin(&reply, STARTED);
  reply_number(&reply, F_PID, (uint64_t)process->pid);
  pthread_mutex_lock(&lock);
  c->process = process;
  c->pid = process->pid;
  c->timeout_at_us = timeout_ms ? process->started_us + timeout_ms * 1000 : 0;
  pthread_mutex_unlock(&lock);
  if (!start_thread(run, c)) {
    process_signal(process, SIGKILL);
    struct pollfd exited = {.fd = process->exit_event, .events = POLLIN};
    while (poll(&exited, 1, -1) < 1);
    finish(c);
    send_error(connection, "too_many_processes", "cannot start a thread for the command");
    return;
  }
  send_reply(connection, &reply);
}

// ---- requests about a command

static void reply_command_locked(struct reply *reply, const struct command *c) {
  reply_begin(reply, COMMAND);
  reply_text(reply, F_COMMAND_ID, c->id);
  reply_text(reply, F_TAG, c->tag);
  reply_text(reply, F_COMMAND_TEXT, c->text);
  reply_text(reply, F_STATUS, c->process ? "running" : c->kill_asked ? "killed" : "exited");
  reply_number(reply, F_PID, (uint64_t)c->pid);
  if (c->exit_code >= 0) reply_number(reply, F_EXIT_CODE, (uint64_t)c->exit_code);
  if (c->exit_signal >= 0) reply_number(reply, F_SIGNAL, (uint64_t)c->exit_signal);
  reply_number(reply, F_TIMED_OUT, c->timed_out);
  reply_number(reply, F_STARTED_MS, c->started_ms);
  if (c->ended_ms) reply_number(reply, F_ENDED_MS, c->ended_ms);
  reply_number(reply, F_OUTPUT_BYTES, c->ring.written);
  reply_number(reply, F_DROPPED_BYTES, c->ring.dropped);
  if (c->out_of_memory) reply_number(reply, F_OUT_OF_MEMORY, 1);
  if (!c->on_terminal) return;
  reply_number(reply, F_COLS, c->cols);
  reply_number(reply, F_ROWS, c->rows);
}

static bool send_command(int connection, struct command *c) {
  struct reply reply;
  pthread_mutex_lock(&lock);
  reply_command_locked(&reply, c);
  pthread_mutex_unlock(&lock);
  return send_reply(connection, &reply);
}

// Keeps a reference to every command while the list is sent, instead of the lock: a slow host must not block the
// commands.
static void send_list(int connection) {
  struct command *held[FINISHED_LIMIT + RUNNING_LIMIT];
  size_t count = 0;
  pthread_mutex_lock(&lock);
  for (struct command *c = commands; c && count < sizeof held / sizeof *held; c = c->next) {
    if (!c->pid) continue; // the command is still starting
    c->references++;
    held[count++] = c;
  }
  pthread_mutex_unlock(&lock);
  bool ok = true;
  for (size_t i = 0; i < count; i++) {
    ok = ok && send_command(connection, held[i]);
    let_go(held[i]);
  }
  if (ok) send_empty(connection, END);
}

static void kill_command(struct command *c) {
  pthread_mutex_lock(&lock);
  // An interactive shell ignores SIGTERM; a closed terminal sends SIGHUP. A stopped job must continue to receive the
  // signal.
  bool told = c->process && process_signal(c->process, c->on_terminal ? SIGHUP : SIGTERM);
  if (told && c->on_terminal) process_signal(c->process, SIGCONT);
  if (told && !c->kill_asked) {
    c->kill_asked = true;
    c->kill_at_us = now_us() + KILL_AFTER_US;
    eventfd_write(c->wake, 1);
  }
  pthread_mutex_unlock(&lock);
}

// ---- input

// Returns a duplicate of the descriptor, so that the command may end meanwhile.
static int borrow_input(struct command *c) {
  pthread_mutex_lock(&lock);
  int fd = c->process && c->process->input >= 0 ? fcntl(c->process->input, F_DUPFD_CLOEXEC, 3) : -1;
  pthread_mutex_unlock(&lock);
  return fd;
}

static void write_input(int connection, struct command *c, const struct request *request) {
  int fd = borrow_input(c);
  if (fd < 0) {
    send_error(connection, "not_running", "the command accepts no more input");
    return;
  }
  const unsigned char *at = request->data;
  bool gone = false;
  for (size_t left = request->data_length; left > 0 && !gone;) {
    ssize_t wrote = c->on_terminal ? terminal_write(fd, at, left) : write(fd, at, left);
    if (wrote > 0) at += wrote, left -= (size_t)wrote;
    else if (errno != EAGAIN && errno != EINTR) gone = true;
    else {
      struct pollfd fds[] = {{.fd = fd, .events = POLLOUT}, {.fd = connection, .events = 0}};
      poll(fds, 2, -1);
      gone = fds[1].revents != 0;
    }
  }
  close(fd);
  if (request->number[F_EOF]) {
    pthread_mutex_lock(&lock);
    if (c->process && c->process->input >= 0) {
      close(c->process->input);
      c->process->input = -1;
    }
    pthread_mutex_unlock(&lock);
  }
  if (gone) send_error(connection, "not_running", "the command accepts no more input");
  else send_empty(connection, OK);
}

static void resize(int connection, struct command *c, const struct request *request) {
  uint64_t cols = request->number[F_COLS], rows = request->number[F_ROWS];
  if (!c->on_terminal || cols > UINT16_MAX || rows > UINT16_MAX) {
    send_error(connection, "guest_protocol", "the command has no terminal, or cols or rows is out of range");
    return;
  }
  pthread_mutex_lock(&lock);
  bool done = c->process && c->process->input >= 0 && terminal_resize(c->process->input, c->process, cols, rows);
  if (done) c->cols = (unsigned short)cols, c->rows = (unsigned short)rows;
  pthread_mutex_unlock(&lock);
  if (done) send_empty(connection, OK);
  else send_error(connection, "not_running", "the terminal is closed");
}

// ---- output

static bool send_chunk(int connection, unsigned char *frame, uint64_t offset, uint8_t stream, uint32_t length) {
  unsigned char *at = frame + HEADER_BYTES;
  at[0] = F_STREAM, put_u32(at + 1, 8), put_u64(at + 5, stream), at += 13;
  at[0] = F_OFFSET, put_u32(at + 1, 8), put_u64(at + 5, offset), at += 13;
  at[0] = F_DATA, put_u32(at + 1, length);
  return send_prefixed(connection, frame, 13 + 13 + 5 + length, CHUNK);
}

static int follower_index(const struct command *c, int event) {
  for (int i = 0; i < FOLLOWER_LIMIT; i++)
    if (c->followers[i] == event) return i;
  return -1;
}

static bool follow(struct command *c, int event, uint64_t offset) {
  int index = follower_index(c, -1);
  if (index < 0) return false;
  c->followers[index] = event;
  c->follower_offsets[index] = offset;
  return true;
}

// Records the offset up to which a follower has read, or that the follower is gone. A terminal that waited for this
// follower may be read again.
static void follow_on(struct command *c, int event, uint64_t offset) {
  c->follower_offsets[follower_index(c, event)] = offset;
  if (c->held) eventfd_write(c->wake, 1);
}

static void unfollow(struct command *c, int event) {
  c->followers[follower_index(c, event)] = -1;
  if (c->held) eventfd_write(c->wake, 1);
}

static bool wait_for_more(int connection, int event) {
  struct pollfd fds[] = {{.fd = event, .events = POLLIN}, {.fd = connection, .events = POLLIN}};
  eventfd_t count;
  poll(fds, 2, -1);
  eventfd_read(event, &count);
  return fds[1].revents == 0; // the host sends nothing while it follows, so any event is its disconnect
}

static void send_logs(int connection, struct command *c, const struct request *request) {
  enum { HEAD = HEADER_BYTES + 13 + 13 + 5 };
  bool following = request->number[F_FOLLOW], ok = true, end = false;
  uint64_t offset = request->number[F_OFFSET];
  uint64_t left = request->has[F_LIMIT] && !following ? request->number[F_LIMIT] : UINT64_MAX;
  struct ring_cursor cursor = {0};
  unsigned char *frame = malloc(HEAD + RECORD_LIMIT);
  int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  pthread_mutex_lock(&lock);
  bool accepted = frame && event >= 0 && (!following || follow(c, event, offset));
  pthread_mutex_unlock(&lock);
  if (!accepted) send_error(connection, "busy", "too many readers follow this command");
  while (accepted && ok && !end) {
    uint8_t stream = 0;
    pthread_mutex_lock(&lock);
    uint32_t got = ring_read(&c->ring, &cursor, &offset, &stream, frame + HEAD,
                             left < RECORD_LIMIT ? (uint32_t)left : RECORD_LIMIT);
    bool running = c->process != NULL;
    if (following) follow_on(c, event, offset);
    pthread_mutex_unlock(&lock);
    if (got > 0) ok = send_chunk(connection, frame, offset, stream, got);
    else if (following && running) ok = wait_for_more(connection, event);
    else end = true;
    offset += got;
    left -= got;
  }
  pthread_mutex_lock(&lock);
  if (following && accepted) unfollow(c, event);
  pthread_mutex_unlock(&lock);
  if (event >= 0) close(event);
  free(frame);
  if (!end || !send_command(connection, c)) return;
  struct reply reply;
  reply_begin(&reply, END);
  reply_number(&reply, F_OFFSET, offset);
  send_reply(connection, &reply);
}

void serve_command(int connection, const struct request *request) {
  if (request->type == COMMAND_LIST) {
    send_list(connection);
    return;
  }
  pthread_mutex_lock(&lock);
  struct command *c = request->has[F_COMMAND_ID] ? find_locked(request->text[F_COMMAND_ID]) : NULL;
  if (c && !c->pid) c = NULL;
  if (c) c->references++;
  pthread_mutex_unlock(&lock);
  if (!c) {
    send_error(connection, "not_found", "no such command");
    return;
  }
  if (request->type == COMMAND_STDIN) write_input(connection, c, request);
  else if (request->type == COMMAND_LOGS) send_logs(connection, c, request);
  else if (request->type == COMMAND_RESIZE) resize(connection, c, request);
  else {
    if (request->type == COMMAND_KILL) kill_command(c);
    send_command(connection, c);
  }
  let_go(c);
}
