// The sides of PID 1 and of the helper. See sudo.h.
#define _GNU_SOURCE
#include "sudo.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine.h"
#include "process.h"

static const char POLICY[] = "/etc/sudoers.d/kontor";

unsigned sudo_address(struct sockaddr_un *address) {
  static const char NAME[] = "\0kontor-sudo";
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path, NAME, sizeof NAME - 1);
  return (unsigned)(offsetof(struct sockaddr_un, sun_path) + sizeof NAME - 1);
}

bool send_with_descriptors(int connection, const void *bytes, size_t length, const int *descriptors, size_t count) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(3 * sizeof(int))];
  } control = {0};
  struct iovec part = {(void *)bytes, length};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (count > 0) {
    message.msg_control = control.space;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
  }
  ssize_t sent;
  while ((sent = sendmsg(connection, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR);
  return sent == (ssize_t)length;
}

long receive_descriptors(int connection, void *bytes, size_t length, int *descriptors, size_t count) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(16 * sizeof(int))];
  } control;
  struct iovec part = {bytes, length};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  ssize_t got;
  while ((got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR);
  size_t found = 0;
  for (struct cmsghdr *header = got < 0 ? NULL : CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t held = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < held; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      if (found < count) descriptors[found++] = fd;
      else close(fd);
    }
  }
  if (found == count) return got;
  while (found > 0) close(descriptors[--found]);
  return -1;
}

// ---- PID 1

// Reads the credentials of the sender of the first byte from the kernel. SO_PEERCRED is unsuitable: gVisor returns the
// caller's own credentials.
static bool read_sender(int connection, struct ucred *sender) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(16 * sizeof(int))];
  } control;
  char first;
  struct iovec part = {&first, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != 1) return false;
  bool found = false;
  for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    if (header->cmsg_type == SCM_CREDENTIALS && header->cmsg_len == CMSG_LEN(sizeof *sender)) {
      memcpy(sender, CMSG_DATA(header), sizeof *sender);
      found = true;
    }
    // Closes received descriptors, so that a client cannot fill the guest's table.
    for (size_t at = CMSG_LEN(0); header->cmsg_type == SCM_RIGHTS && at < header->cmsg_len; at += sizeof(int)) {
      int fd;
      memcpy(&fd, (char *)header + at, sizeof fd);
      close(fd);
    }
  }
  return found;
}

static bool is_allowed(const struct user *user) {
  if (user->uid == 0) return true;
  char wanted[300], line[512];
  snprintf(wanted, sizeof wanted, "%s ALL=(ALL:ALL) NOPASSWD: ALL\n", user->name);
  struct stat info;
  int fd = open(POLICY, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  bool good = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == 0 && !(info.st_mode & 022);
  FILE *file = good ? fdopen(fd, "r") : NULL;
  if (!file && fd >= 0) close(fd);
  bool found = false;
  while (file && !found && fgets(line, sizeof line, file)) found = !strcmp(line, wanted);
  if (file) fclose(file);
  return found;
}

static bool start_helper(int connection, const struct ucred *sender) {
  char number[16], uid[32], gid[32], name[300];
  struct failure failure;
  struct user *user = malloc(sizeof *user);
  snprintf(number, sizeof number, "%u", sender->uid);
  bool ok = user && find_user(number, user, &failure) && is_allowed(user);
  if (ok) {
    snprintf(uid, sizeof uid, "SUDO_UID=%u", sender->uid);
    snprintf(gid, sizeof gid, "SUDO_GID=%u", sender->gid);
    snprintf(name, sizeof name, "SUDO_USER=%s", user->name);
    char *extra[] = {uid, gid, name};
    char **env = find_user("root", user, &failure) ? make_environment(user, extra, 3) : NULL;
    static char *const argv[] = {"/.kontor/guest", "sudo-helper", NULL};
    ok = env && process_start_helper(connection, argv, env);
    free(env);
  }
  free(user);
  return ok;
}

enum { DIALLER_LIMIT = 16 };
static atomic_int diallers;

// Checks a client. Runs in its own thread, so that a client that connects and sends nothing delays no other client.
static void *take(void *argument) {
  int connection = (int)(intptr_t)argument, one = 1;
  const struct timeval patience = {.tv_sec = 2}, none = {0};
  struct ucred sender;
  setsockopt(connection, SOL_SOCKET, SO_PASSCRED, &one, sizeof one);
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  bool known = read_sender(connection, &sender);
  // The helper is a separate process: a client on a busy host may send the command slowly.
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
  if (!known || !start_helper(connection, &sender)) {
    const char refused = SUDO_REFUSED;
    send(connection, &refused, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  close(connection);
  atomic_fetch_sub(&diallers, 1);
  return NULL;
}

static void *listen_for_sudo(void *argument) {
  int listener = (int)(intptr_t)argument;
  for (;;) {
    int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0) {
      // accept fails with EINTR after a restore, and with EMFILE while the table is full.
      if (errno != EINTR) poll(NULL, 0, 50);
      continue;
    }
    while (atomic_load(&diallers) >= DIALLER_LIMIT) poll(NULL, 0, 20);
    atomic_fetch_add(&diallers, 1);
    if (start_thread(take, (void *)(intptr_t)connection)) continue;
    atomic_fetch_sub(&diallers, 1);
    close(connection);
  }
  return NULL;
}

bool start_sudo(void) {
  struct sockaddr_un address;
  unsigned length = sudo_address(&address);
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 64) == 0)
    return start_thread(listen_for_sudo, (void *)(intptr_t)listener);
  if (listener >= 0) close(listener);
  return false;
}

// ---- the helper

// The payload of the helper's request: NUL-terminated texts. Order: user, cwd, flags, number of arguments,
// arguments, number of named variables, named variables, the caller's environment.
struct command {
  char *user, *cwd, *flags;
  char *argv[SUDO_LIST_LIMIT + 5];
  char *variables[SUDO_LIST_LIMIT + 1], *env[SUDO_LIST_LIMIT + 1];
  int descriptors[3];
};

static char *next_text(char **at, const char *end) {
  if (*at >= end) return NULL;
  char *text = *at;
  *at += strlen(text) + 1;
  return text;
}

static bool read_list(char **at, const char *end, char **list) {
  const char *count_text = next_text(at, end);
  long count = count_text ? strtol(count_text, NULL, 10) : -1;
  if (count < 0 || count > SUDO_LIST_LIMIT) return false;
  for (long i = 0; i < count; i++)
    if (!(list[i] = next_text(at, end))) return false;
  list[count] = NULL;
  return true;
}

static bool receive_command(struct command *command) {
  unsigned length;
  if (receive_descriptors(0, &length, sizeof length, command->descriptors, 3) != sizeof length) return false;
  char *bytes = length > 0 && length <= SUDO_PAYLOAD_LIMIT ? malloc(length) : NULL;
  if (!bytes || !read_exactly(0, bytes, length) || bytes[length - 1]) return false;
  char *at = bytes;
  const char *end = bytes + length;
  command->user = next_text(&at, end);
  command->cwd = next_text(&at, end);
  command->flags = next_text(&at, end);
  if (!command->flags || !read_list(&at, end, command->argv) || !read_list(&at, end, command->variables)) return false;
  int count = 0;
  while (count < SUDO_LIST_LIMIT && (command->env[count] = next_text(&at, end))) count++;
  command->env[count] = NULL;
  return true;
}

static void set_variable(char *entry) {
  char *value = strchr(entry, '=');
  if (!value || value == entry) return;
  *value = 0;
  setenv(entry, value + 1, 1);
  *value = '=';
}

// True for the caller's terminal variables, and for its whole environment with -E.
static bool is_kept(const char *entry, const char *flags) {
  static const char *const NAMES[] = {"TERM=", "COLORTERM=", "LANG=", "LC_", "DISPLAY=", "TZ="};
  if (strchr(flags, 'E')) return strncmp(entry, "SUDO_", 5) != 0;
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
    if (!strncmp(entry, NAMES[i], strlen(NAMES[i]))) return true;
  return false;
}

static void set_environment(const struct command *command, const struct user *user) {
  setenv("HOME", user->home, 1);
  setenv("USER", user->name, 1);
  setenv("LOGNAME", user->name, 1);
  setenv("SHELL", user->shell, 1);
  for (char *const *entry = command->env; *entry; entry++)
    if (is_kept(*entry, command->flags)) set_variable(*entry);
  for (char *const *entry = command->variables; *entry; entry++) set_variable(*entry);
  if (command->argv[0]) setenv("SUDO_COMMAND", command->argv[0], 1);
}

// Quotes each argument as one word of the shell, as sudo(8) does. `$` keeps its meaning.
static char *join(char *const *argv) {
  size_t size = 1;
  for (char *const *word = argv; *word; word++) size += 2 * strlen(*word) + 1;
  char *text = malloc(size), *at = text;
  if (!text) return NULL;
  for (char *const *word = argv; *word; word++) {
    if (word != argv) *at++ = ' ';
    for (const char *byte = *word; *byte; byte++) {
      bool is_plain = (*byte >= 'a' && *byte <= 'z') || (*byte >= 'A' && *byte <= 'Z') ||
                      (*byte >= '0' && *byte <= '9') || strchr("_-$", *byte) || (unsigned char)*byte >= 0x80;
      if (!is_plain) *at++ = '\\';
      *at++ = *byte;
    }
  }
  *at = 0;
  return text;
}

// Options -s and -i: runs the user's shell with the command as its script. Returns the program.
static const char *use_shell(struct command *command, const struct user *user, char *name, size_t size) {
  bool is_login = strchr(command->flags, 'i');
  if (!is_login && !strchr(command->flags, 's')) return command->argv[0];
  char *script = command->argv[0] ? join(command->argv) : NULL;
  const char *base = strrchr(user->shell, '/');
  snprintf(name, size, "%s%s", is_login ? "-" : "", base ? base + 1 : user->shell);
  command->argv[0] = name;
  command->argv[1] = script ? "-c" : NULL;
  command->argv[2] = script;
  command->argv[3] = NULL;
  return user->shell;
}

static int open_pty(int *slave) {
  char path[32];
  int number, unlock = 0, master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) || ioctl(master, TIOCGPTN, &number)) return -1;
  snprintf(path, sizeof path, "/dev/pts/%d", number);
  *slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
  return *slave < 0 ? -1 : master;
}

static void run_command(struct command *command, const struct user *user, int slave) {
  char name[300];
  if (slave >= 0) {
    setsid();
    ioctl(slave, TIOCSCTTY, 0);
  } else {
    setpgid(0, 0);
  }
  for (int fd = 0; fd < 3; fd++) {
    bool is_terminal = slave >= 0 && isatty(command->descriptors[fd]);
    if (dup2(is_terminal ? slave : command->descriptors[fd], fd) < 0) _exit(1);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  umask(022);
  const char *program = use_shell(command, user, name, sizeof name);
  gid_t groups[64];
  for (int i = 0; i < user->group_count; i++) groups[i] = user->groups[i];
  const char *cwd = strchr(command->flags, 'i') ? user->home : command->cwd;
  if (setgroups((size_t)user->group_count, groups) || setgid(user->gid) || setuid(user->uid)) {
    dprintf(2, "sudo: cannot become %s: %s\n", user->name, strerror(errno));
    _exit(1);
  }
  if (chdir(cwd)) dprintf(2, "sudo: cannot enter %s: %s\n", cwd, strerror(errno));
  execvp(program, command->argv);
  dprintf(2, errno == ENOENT ? "sudo: %s: command not found\n" : "sudo: %s: cannot be run\n", program);
  _exit(1);
}

static bool is_forwarded(int signal) {
  static const int SIGNALS[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGCONT};
  for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++)
    if (SIGNALS[i] == signal) return true;
  return false;
}

// Forwards signals until the command has ended. Kills the command if the client disconnects.
static int supervise(pid_t pid, int ends) {
  for (int status;;) {
    struct pollfd sources[] = {{.fd = 0, .events = POLLIN}, {.fd = ends, .events = POLLIN}};
    if (poll(sources, 2, -1) < 0) continue;
    if (sources[1].revents) {
      struct signalfd_siginfo info;
      if (read(ends, &info, sizeof info) < 0 && errno != EAGAIN && errno != EINTR) return 0;
      if (waitpid(pid, &status, WNOHANG) == pid) return status;
    }
    if (sources[0].revents) {
      unsigned char signal;
      ssize_t got = read(0, &signal, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got == 1 && is_forwarded(signal)) kill(-pid, signal);
      if (got == 1) continue;
      kill(-pid, SIGKILL);
      kill(pid, SIGKILL);
      while (waitpid(pid, &status, 0) < 0 && errno == EINTR);
      return status;
    }
  }
}

int sudo_helper(void) {
  struct command *command = calloc(1, sizeof *command);
  struct user *user = malloc(sizeof *user);
  struct failure failure;
  if (!command || !user || !receive_command(command)) return 1;
  int error_output = command->descriptors[2];
  if (!find_user(command->user, user, &failure)) {
    dprintf(error_output, "sudo: %s\n", failure.message);
    return 1;
  }
  int slave = -1, master = strchr(command->flags, 't') ? open_pty(&slave) : -1;
  const char terminal = SUDO_TERMINAL;
  if (master >= 0) {
    fchown(slave, user->uid, (gid_t)-1);
    if (!send_with_descriptors(0, &terminal, 1, &master, 1)) return 1;
    close(master);
  }
  sigset_t ended;
  sigemptyset(&ended);
  sigaddset(&ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &ended, NULL);
  int ends = signalfd(-1, &ended, SFD_CLOEXEC | SFD_NONBLOCK);
  set_environment(command, user);
  pid_t pid = ends < 0 ? -1 : fork();
  if (pid == 0) run_command(command, user, slave);
  if (pid < 0) {
    dprintf(error_output, "sudo: cannot start a process: %s\n", strerror(errno));
    return 1;
  }
  if (slave < 0) setpgid(pid, pid);
  // A reader at the other end of a pipe waits until the last writer has closed it.
  for (int fd = 0; fd < 3; fd++) close(command->descriptors[fd]);
  if (slave >= 0) close(slave);
  struct __attribute__((packed)) {
    char type;
    int status;
  } reply = {SUDO_ENDED, supervise(pid, ends)};
  send(0, &reply, sizeof reply, MSG_NOSIGNAL);
  return 0;
}
