#define _GNU_SOURCE
#include "process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "cpus.h"
#include "machine.h"
#include "services.h"

enum { CHILD_STACK = 64 * 1024, PIPE_BYTES = 1024 * 1024, THREAD_STACK = 128 * 1024 };

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int registry_wanted; // number of threads, besides the reaper, that wait for the registry
static struct process *registry;
static int drainer = -1;
// The machine's original limits. A program may not raise `processes`: this limit also counts the processes that other
// programs of its user started.
static struct rlimit descriptors, processes;
static const char *children_oom_score;

static void lock_registry(void) {
  atomic_fetch_add(&registry_wanted, 1);
  pthread_mutex_lock(&registry_lock);
  atomic_fetch_sub(&registry_wanted, 1);
}

static uint64_t clock_us(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
uint64_t now_us(void) { return clock_us(CLOCK_MONOTONIC); }
uint64_t now_ms(void) { return clock_us(CLOCK_REALTIME) / 1000; }

bool start_thread(void *(*run)(void *), void *argument) {
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, THREAD_STACK);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  int error = pthread_create(&thread, &attributes, run, argument);
  pthread_attr_destroy(&attributes);
  return error == 0;
}

static void close_end(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

static void raise_limit(int resource, struct rlimit *given) {
  getrlimit(resource, given);
  struct rlimit raised = {.rlim_cur = given->rlim_max, .rlim_max = given->rlim_max};
  setrlimit(resource, &raised);
}

void raise_limits(void) {
  raise_limit(RLIMIT_NOFILE, &descriptors);
  raise_limit(RLIMIT_NPROC, &processes);
  processes.rlim_max = processes.rlim_cur;
}

void set_children_oom_score(const char *score) { children_oom_score = score; }

// ---- the child between clone and exec: it shares the guest's memory, so it only makes system calls and sets its own
// entry

struct launch {
  struct process *process;
  const struct user *user;
  const char *cwd;
  char *const *argv;
  char *const *env;
  int input, output, error;
  struct winsize size;
};

static int child_failed(struct launch *launch, const char *stage) {
  launch->process->exec_stage = stage;
  launch->process->exec_error = errno;
  _exit(127);
}

static const char *find_variable(char *const *env, const char *name) {
  size_t length = strlen(name);
  for (; *env; env++)
    if (!strncmp(*env, name, length) && (*env)[length] == '=') return *env + length + 1;
  return "";
}

// Executes the program on the child's PATH; execvpe would use the PATH of PID 1. Like a shell, continues after a file
// that may not be run.
static void exec_in_path(char *const *argv, char *const *env) {
  if (strchr(argv[0], '/')) {
    execve(argv[0], argv, env);
    return;
  }
  int worst = ENOENT;
  char path[PATH_LIMIT + 1];
  size_t name_length = strlen(argv[0]);
  for (const char *directory = find_variable(env, "PATH"); name_length > 0 && directory;) {
    const char *end = strchrnul(directory, ':');
    size_t length = (size_t)(end - directory);
    if (length > 0 && length + name_length + 2 <= sizeof path) {
      memcpy(path, directory, length);
      path[length] = '/';
      memcpy(path + length + 1, argv[0], name_length + 1);
      execve(path, argv, env);
      if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) return;
      if (errno == EACCES) worst = EACCES;
    }
    directory = *end ? end + 1 : NULL;
  }
  errno = worst;
}

// Signals that main() handles or ignores. A child resets them, because its program expects the defaults.
static const int HANDLED[] = {SIGCHLD, SIGTERM, SIGINT, SIGPIPE};

// Uses raw system calls for the identity: glibc's functions change every thread of the process, and the child
// shares them with PID 1.
static int child_main(void *argument) {
  struct launch *launch = argument;
  launch->process->pid = getpid();
  setsid();
  if (launch->process->on_terminal && ioctl(launch->input, TIOCSCTTY, 0)) child_failed(launch, "terminal");
  struct sigaction plain = {.sa_handler = SIG_DFL};
  for (size_t i = 0; i < sizeof HANDLED / sizeof *HANDLED; i++) sigaction(HANDLED[i], &plain, NULL);
  if (dup2(launch->input, 0) < 0 || dup2(launch->output, 1) < 0 || dup2(launch->error, 2) < 0)
    child_failed(launch, "stdio");
  // This call is a second safeguard: every descriptor of the guest is O_CLOEXEC already. A kernel may lack the call.
  syscall(SYS_close_range, 3, ~0U, 0);
  umask(022);
  setrlimit(RLIMIT_NOFILE, &descriptors);
  setrlimit(RLIMIT_NPROC, &processes);
  limit_child_cpus();
  if (children_oom_score) {
    // Only the child of vfork gets the score: the kernel does not give it to other processes of this memory
    // (proc_pid_oom_score_adj(5)).
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) write_exactly(fd, children_oom_score, strlen(children_oom_score));
    close_end(&fd);
  }
  const struct user *user = launch->user;
  if (user->uid != 0 || user->gid != 0 || user->group_count > 0) {
    if (syscall(SYS_setgroups, user->group_count, user->groups) || syscall(SYS_setgid, user->gid) ||
        syscall(SYS_setuid, user->uid))
      child_failed(launch, "user");
  }
  if (chdir(launch->cwd)) child_failed(launch, "cwd");
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  exec_in_path(launch->argv, launch->env);
  return child_failed(launch, "exec");
}

// ---- start

static bool open_pipes(int pipes[3][2]) {
  for (int i = 0; i < 3; i++) {
    if (pipe2(pipes[i], O_CLOEXEC)) return false;
    // 1 MiB gives fewer, larger pieces: 406 MB/s through `cat`, three times the rate of the usual 64 KiB.
    fcntl(pipes[i][0], F_SETPIPE_SZ, PIPE_BYTES);
  }
  return true;
}

// Opens the slave by its path, because gVisor has no TIOCGPTPEER. TIOCSCTTY refuses any other file at that
// path.
static bool open_terminal(const struct launch *launch, int pipes[3][2]) {
  char path[32];
  int number, unlock = 0;
  int master = pipes[1][0] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) || ioctl(master, TIOCGPTN, &number)) return false;
  snprintf(path, sizeof path, "/dev/pts/%d", number);
  int slave = pipes[0][0] = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (slave < 0 || ioctl(master, TIOCSWINSZ, &launch->size)) return false;
  // The owner is changed as by grantpt. If this is not permitted, the program still has the descriptors.
  if (fchown(slave, launch->user->uid, (gid_t)-1) == 0) fchmod(slave, 0620);
  pipes[0][1] = fcntl(master, F_DUPFD_CLOEXEC, 3);
  pipes[1][1] = fcntl(slave, F_DUPFD_CLOEXEC, 3);
  pipes[2][1] = fcntl(slave, F_DUPFD_CLOEXEC, 3);
  return pipes[0][1] >= 0 && pipes[1][1] >= 0 && pipes[2][1] >= 0;
}

static void forget(struct process *process) {
  lock_registry();
  for (struct process **at = &registry; *at; at = &(*at)->next)
    if (*at == process) {
      *at = process->next;
      break;
    }
  pthread_mutex_unlock(&registry_lock);
  close_end(&process->input);
  close_end(&process->output);
  close_end(&process->error);
  close_end(&process->exit_event);
  free(process);
}

static bool refuse_start(const struct launch *launch, int error, struct failure *failure) {
  const char *stage = launch->process->exec_stage;
  if (!strcmp(stage, "cwd")) return fail_errno(failure, error, launch->cwd);
  if (error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE)
    return fail(failure, "too_many_processes", "cannot start a process: %s", strerror(error));
  return fail(failure, "exec_failed", "%.300s: %s", launch->argv[0], strerror(error));
}

static void wait_for_exit(struct process *process) {
  struct pollfd exited = {.fd = process->exit_event, .events = POLLIN};
  while (poll(&exited, 1, -1) < 1);
}

static bool launch_process(struct launch *launch, struct failure *failure) {
  struct process *process = launch->process;
  int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
  char *stack = malloc(CHILD_STACK);
  process->exit_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  process->exec_stage = "pipe";
  bool opened = stack && process->exit_event >= 0;
  opened = opened && (process->on_terminal ? open_terminal(launch, pipes) : open_pipes(pipes));
  // The rest of the start may take long: a directory or a program may be on a slow file system.
  if (opened && !let_another_dial()) opened = false, errno = EAGAIN;
  if (!opened) {
    int error = errno;
    for (int i = 0; i < 3; i++) close_end(&pipes[i][0]), close_end(&pipes[i][1]);
    free(stack);
    return refuse_start(launch, error, failure);
  }
  launch->input = pipes[0][0];
  launch->output = pipes[1][1];
  launch->error = pipes[2][1];
  process->input = pipes[0][1];
  process->output = pipes[1][0];
  process->error = pipes[2][0];
  // Reads cannot block: the guest reads output only after poll, and is the only reader.
  fcntl(process->input, F_SETFL, O_NONBLOCK);

  // No signal may reach the child while it shares the guest's memory and handlers.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  process->started_us = now_us();
  // The child shares the memory and blocks the parent until exec. fork would copy page tables, which is expensive
  // inside gVisor.
  process->exec_stage = "fork";
  pid_t pid = clone(child_main, stack + CHILD_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, launch);
  int error = pid < 0 ? errno : process->exec_error;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  free(stack);
  close(launch->input);
  close(launch->output);
  close(launch->error);
  if (pid > 0 && error) wait_for_exit(process);
  return error == 0 || refuse_start(launch, error, failure);
}

static struct winsize window(uint64_t cols, uint64_t rows) {
  return (struct winsize){.ws_col = (unsigned short)cols, .ws_row = (unsigned short)rows};
}

// Returns the request's argv, or the argv of a shell, which is stored in `shell_argv`.
static char *const *choose_argv(const struct request *request, const char *shell_argv[4]) {
  if (!request->has[F_SHELL]) return request->argv;
  shell_argv[0] = access("/bin/bash", X_OK) == 0 ? "/bin/bash" : "/bin/sh";
  shell_argv[1] = "-c";
  shell_argv[2] = request->text[F_SHELL];
  shell_argv[3] = NULL;
  return (char *const *)shell_argv;
}

bool process_start(const struct request *request, struct process **started, struct failure *failure) {
  if (request->has[F_SHELL] == (request->argv_count > 0))
    return fail(failure, "guest_protocol", "exactly one of argv and shell is needed");
  if (request->number[F_COLS] > UINT16_MAX || request->number[F_ROWS] > UINT16_MAX)
    return fail(failure, "guest_protocol", "cols and rows must be at most 65535");
  struct user *user = malloc(sizeof *user);
  struct process *process = calloc(1, sizeof *process);
  char **env = NULL;
  bool ok = user && process;
  if (!ok) fail(failure, "too_many_processes", "no memory to start a process");
  ok = ok && find_user(request->has[F_USER] ? request->text[F_USER] : "root", user, failure);
  if (ok && !(env = make_environment(user, request->env, request->env_count)))
    ok = fail(failure, "too_many_processes", "no memory to start a process");
  if (!ok) {
    free(process);
  } else {
    const char *cwd = request->text[F_CWD];
    if (!cwd) cwd = access("/workspace", F_OK) == 0 ? "/workspace" : "/";
    const char *shell_argv[4];
    struct launch launch = {.process = process, .user = user, .cwd = cwd, .env = env};
    launch.argv = choose_argv(request, shell_argv);
    process->input = process->output = process->error = process->exit_event = -1;
    process->on_terminal = request->has[F_COLS] && request->has[F_ROWS];
    launch.size = window(request->number[F_COLS], request->number[F_ROWS]);
    lock_registry();
    process->next = registry;
    registry = process;
    pthread_mutex_unlock(&registry_lock);
    ok = launch_process(&launch, failure);
    if (!ok) forget(process);
  }
  free(env);
  free(user);
  *started = ok ? process : NULL;
  return ok;
}

struct helper {
  int connection;
  char *const *argv, *const *env;
  volatile int error;
};

static int helper_main(void *argument) {
  struct helper *helper = argument;
  setsid();
  struct sigaction plain = {.sa_handler = SIG_DFL};
  for (size_t i = 0; i < sizeof HANDLED / sizeof *HANDLED; i++) sigaction(HANDLED[i], &plain, NULL);
  int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing >= 0 && dup2(helper->connection, 0) == 0 && dup2(nothing, 1) == 1 && dup2(nothing, 2) == 2) {
    syscall(SYS_close_range, 3, ~0U, 0);
    setrlimit(RLIMIT_NOFILE, &descriptors);
    setrlimit(RLIMIT_NPROC, &processes);
    limit_child_cpus();
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(helper->argv[0], helper->argv, helper->env);
  }
  helper->error = errno;
  _exit(127);
}

bool process_start_helper(int connection, char *const *argv, char *const *env) {
  struct helper helper = {.connection = connection, .argv = argv, .env = env};
  char *stack = malloc(CHILD_STACK);
  if (!stack) return false;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_t pid = clone(helper_main, stack + CHILD_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &helper);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  free(stack);
  return pid > 0 && helper.error == 0;
}

// ---- signals and ends

static bool is_process(const struct dirent *entry) { return entry->d_name[0] >= '1' && entry->d_name[0] <= '9'; }

// Reads /proc/PID/stat: "pid (any text) state ppid pgrp session …". Returns false if there is no such process.
static bool read_stat(const char *pid, char *state, pid_t *session) {
  char path[300], line[512];
  snprintf(path, sizeof path, "/proc/%s/stat", pid);
  FILE *file = fopen(path, "re");
  const char *rest = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
  bool good = rest && sscanf(rest, ") %c %*d %*d %d", state, session) == 2;
  if (file) fclose(file);
  return good;
}

// Returns the session of a process, or 0 if the process is dead or missing.
static pid_t session_of(const char *pid) {
  char state;
  pid_t session;
  return read_stat(pid, &state, &session) && state != 'Z' ? session : 0;
}

// Signals every process of a session. Returns their number. The kernel does not reuse a leader's number while its
// session has members.
static int signal_session(pid_t leader, int signal) {
  int count = 0;
  DIR *processes = opendir("/proc");
  for (struct dirent *entry; processes && (entry = readdir(processes));) {
    if (!is_process(entry) || session_of(entry->d_name) != leader) continue;
    count += kill((pid_t)atoi(entry->d_name), signal) == 0;
  }
  if (processes) closedir(processes);
  return count;
}

pid_t process_session(pid_t pid) {
  char text[16];
  snprintf(text, sizeof text, "%d", pid);
  return session_of(text);
}

// Records the reason before the signal, so that a waiting thread reads it together with the exit.
static void note_out_of_memory(pid_t session) {
  lock_registry();
  for (struct process *process = registry; process && session > 0; process = process->next)
    if (process->pid == session && !process->exited) process->out_of_memory = true;
  pthread_mutex_unlock(&registry_lock);
}

bool process_end(pid_t pid) {
  note_out_of_memory(process_session(pid));
  return kill(pid, SIGKILL) == 0;
}

// Stops the running processes of a session, or of the machine if `session` is 0. Returns whether any process was
// running.
static bool stop_running(pid_t session) {
  bool found = false;
  DIR *processes = opendir("/proc");
  for (struct dirent *entry; processes && (entry = readdir(processes));) {
    char state;
    pid_t in, pid = is_process(entry) ? (pid_t)atoi(entry->d_name) : 0;
    if (pid <= 1 || pid == getpid() || !read_stat(entry->d_name, &state, &in)) continue;
    if ((session && in != session) || strchr("TtZX", state)) continue;
    found |= kill(pid, SIGSTOP) == 0;
  }
  if (processes) closedir(processes);
  return found;
}

// gVisor signals the members of a group one by one and misses a process that is forked meanwhile. Each round leaves
// fewer processes that can fork, so the rounds continue until none runs.
void process_stop_all(pid_t session) {
  enum { TIMEOUT_US = 10000000 };
  uint64_t deadline = now_us() + TIMEOUT_US;
  pid_t target = session ? -session : -1;
  do kill(target, SIGSTOP), kill(target, SIGSTOP);
  while (stop_running(session) && now_us() < deadline);
}

void process_continue_all(pid_t spared_session) {
  DIR *processes = opendir("/proc");
  for (struct dirent *entry; processes && (entry = readdir(processes));) {
    pid_t pid = is_process(entry) ? (pid_t)atoi(entry->d_name) : 0;
    if (pid > 1 && pid != getpid() && (!spared_session || session_of(entry->d_name) != spared_session))
      kill(pid, SIGCONT);
  }
  if (processes) closedir(processes);
}

// Killing a thousand processes at once keeps a core busy for half a minute inside gVisor, and new processes
// wait behind them. So the processes are stopped first, which costs almost nothing, and are then killed a few
// at a time.
void process_begin_end(pid_t session) {
  note_out_of_memory(session);
  process_stop_all(session);
}

bool process_end_some(pid_t session) {
  enum { ROUND = 8 };
  int count = 0;
  DIR *processes = opendir("/proc");
  for (struct dirent *entry; processes && count < ROUND && (entry = readdir(processes));) {
    if (!is_process(entry) || session_of(entry->d_name) != session) continue;
    count += kill((pid_t)atoi(entry->d_name), SIGKILL) == 0;
  }
  if (processes) closedir(processes);
  return count > 0;
}

static int signal_all(const struct process *process, int signal) {
  if (process->on_terminal) return signal_session(process->pid, signal);
  return kill(-process->pid, signal) == 0;
}

static bool is_key(const struct termios *settings, unsigned char byte) {
  return byte == settings->c_cc[VINTR] || byte == settings->c_cc[VQUIT] || byte == settings->c_cc[VSUSP];
}

// gVisor turns Ctrl-C, Ctrl-\ and Ctrl-Z into signals even for a program in raw mode (ISIG of termios(3)). These
// signals would kill a tmux, an ssh or a node that only wants to read the keys. So the keys have no special meaning
// while they are written to such a program. Settings that the program changes meanwhile are kept.
ssize_t terminal_write(int terminal, const unsigned char *bytes, size_t length) {
  static const int KEYS[] = {VINTR, VQUIT, VSUSP};
  struct termios before, now;
  if (tcgetattr(terminal, &before) || (before.c_lflag & ISIG)) return write(terminal, bytes, length);
  size_t plain = 0;
  while (plain < length && !is_key(&before, bytes[plain])) plain++;
  if (plain > 0 || length == 0) return write(terminal, bytes, plain);
  now = before;
  for (size_t i = 0; i < 3; i++) now.c_cc[KEYS[i]] = _POSIX_VDISABLE;
  tcsetattr(terminal, TCSANOW, &now);
  ssize_t wrote = write(terminal, bytes, 1);
  int error = errno;
  tcgetattr(terminal, &now);
  for (size_t i = 0; i < 3; i++)
    if (now.c_cc[KEYS[i]] == _POSIX_VDISABLE) now.c_cc[KEYS[i]] = before.c_cc[KEYS[i]];
  tcsetattr(terminal, TCSANOW, &now);
  errno = error;
  return wrote;
}

// gVisor sends no SIGWINCH itself, and does not show the foreground group from outside. So every process of the session
// gets the signal. Programs ignore the signal by default.
bool terminal_resize(int terminal, const struct process *process, uint64_t cols, uint64_t rows) {
  struct winsize size = window(cols, rows);
  if (ioctl(terminal, TIOCSWINSZ, &size)) return false;
  signal_session(process->pid, SIGWINCH);
  return true;
}

// Sends the signal under the lock, so that the reaper cannot free the process id between the check and the kill.
bool process_signal(struct process *process, int signal) {
  lock_registry();
  bool alive = !process->exited;
  if (alive) signal_all(process, signal);
  pthread_mutex_unlock(&registry_lock);
  return alive;
}

// gVisor signals the members of a group one after the other, and misses a fork between two of them. Measured: a
// thousand processes of a fork bomb outlived the SIGKILL of their group. So the signal is repeated without a pause, in
// which the bomb could fork. The loop ends when the group is gone, or after ten seconds.
void process_kill_rest(const struct process *process) {
  enum { TIMEOUT_US = 10000000 };
  uint64_t deadline = now_us() + TIMEOUT_US;
  while (signal_all(process, SIGKILL) && now_us() < deadline) sched_yield();
}

bool process_signal_pid(pid_t pid, int signal) {
  bool known = false;
  lock_registry();
  for (struct process *process = registry; process && pid > 0; process = process->next)
    if (process->pid == pid && !process->exited) known = kill(-pid, signal) == 0;
  pthread_mutex_unlock(&registry_lock);
  return known;
}

static void record_exit(pid_t pid, int status) {
  for (struct process *process = registry; process; process = process->next) {
    if (process->pid != pid || process->exited) continue;
    process->status = status;
    process->ended_us = now_us();
    process->exited = true;
    eventfd_write(process->exit_event, 1);
  }
}

// Orphans of a fork bomb arrive faster than they are reaped. A caller that wants to kill the bomb must not
// wait for the last of them.
void reap_children(void) {
  pid_t pid;
  do {
    while (atomic_load(&registry_wanted) > 0) sched_yield();
    int status;
    pthread_mutex_lock(&registry_lock);
    if ((pid = waitpid(-1, &status, WNOHANG)) > 0) record_exit(pid, status);
    pthread_mutex_unlock(&registry_lock);
  } while (pid > 0);
}

void reply_exit(struct reply *reply, const struct process *process, bool timed_out) {
  if (WIFSIGNALED(process->status)) reply_number(reply, F_SIGNAL, (uint64_t)WTERMSIG(process->status));
  else reply_number(reply, F_EXIT_CODE, (uint64_t)WEXITSTATUS(process->status));
  reply_number(reply, F_TIMED_OUT, timed_out);
  reply_number(reply, F_DURATION_US, process->ended_us - process->started_us);
  if (process->out_of_memory) reply_number(reply, F_OUT_OF_MEMORY, 1);
}

size_t pipe_backlog(int fd) {
  int bytes = 0;
  return fd >= 0 && ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

size_t pipe_read(int fd, void *bytes, size_t size) {
  ssize_t got;
  while ((got = read(fd, bytes, size)) < 0 && errno == EINTR);
  return got > 0 ? (size_t)got : 0;
}

// ---- pipes that outlive their process
// A server that a shell started with `&` keeps its parent's pipes. If the guest closed them, the server would
// die of SIGPIPE at its next line.

static void *drain(void *unused) {
  (void)unused;
  static char bytes[64 * 1024];
  for (;;) {
    struct epoll_event event;
    if (epoll_wait(drainer, &event, 1, -1) != 1) continue;
    ssize_t got = read(event.data.fd, bytes, sizeof bytes);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) continue;
    // The entry is removed explicitly: a child between clone and exec holds a copy of every descriptor, which would
    // keep the entry alive.
    epoll_ctl(drainer, EPOLL_CTL_DEL, event.data.fd, NULL);
    close(event.data.fd);
  }
  return NULL;
}

bool start_drainer(void) {
  drainer = epoll_create1(EPOLL_CLOEXEC);
  return drainer >= 0 && start_thread(drain, NULL);
}

static void leave_to_drainer(int *fd) {
  if (*fd < 0) return;
  struct epoll_event event = {.events = EPOLLIN, .data.fd = *fd};
  if (epoll_ctl(drainer, EPOLL_CTL_ADD, *fd, &event) == 0) *fd = -1;
}

void process_release(struct process *process) {
  if (!process->on_terminal) {
    leave_to_drainer(&process->output);
    leave_to_drainer(&process->error);
  }
  forget(process);
}
