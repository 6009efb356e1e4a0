// The command `sudo`. See sudo.h.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "frame.h"
#include "sudo.h"

extern char **environ;

static int connection = -1, master = -1;
static bool is_raw;
static struct termios plain;

static const char USAGE[] =
    "usage: sudo [-EHinsS] [-u user] [-D directory] [VAR=value] [command [argument ...]]\n"
    "       sudo -v | -k | -K | -l | -V | -h\n";

struct options {
  const char *user, *cwd;
  char flags[8];
  int first;         // index of the first word: variables, then the command
  const char *only;  // an option that only prints, or does nothing, and runs no command
};

static void add_flag(struct options *options, char flag) {
  size_t length = strlen(options->flags);
  if (!strchr(options->flags, flag) && length + 1 < sizeof options->flags) options->flags[length] = flag;
}

static char short_form(const char *option) {
  static const struct {
    const char *name;
    char letter;
  } LONG[] = {{"user", 'u'}, {"preserve-env", 'E'}, {"set-home", 'H'}, {"login", 'i'}, {"non-interactive", 'n'},
              {"shell", 's'}, {"stdin", 'S'}, {"chdir", 'D'}, {"validate", 'v'}, {"reset-timestamp", 'k'},
              {"remove-timestamp", 'K'}, {"list", 'l'}, {"version", 'V'}, {"help", 'h'}, {"prompt", 'p'}};
  size_t length = strcspn(option, "=");
  for (size_t i = 0; i < sizeof LONG / sizeof *LONG; i++)
    if (strlen(LONG[i].name) == length && !strncmp(LONG[i].name, option, length)) return LONG[i].letter;
  return 0;
}

// Applies an option. Returns false if the option is unknown, or has no value.
static bool take_option(struct options *options, char letter, const char *value) {
  if (strchr("uDp", letter) && !value) return false;
  if (letter == 'u') options->user = *value == '#' ? value + 1 : value;
  else if (letter == 'D') options->cwd = value;
  else if (strchr("Eis", letter)) add_flag(options, letter);
  else if (strchr("vlVh", letter)) options->only = strchr("vlVh", letter);
  // These options do nothing: sudo here never requires a password, and HOME is always the target user's.
  else if (letter == 'k' || letter == 'K') options->only = options->only ? options->only : "k";
  else if (!strchr("nSHp", letter)) return false;
  return true;
}

static bool read_options(int count, char **arguments, struct options *options) {
  int at = 1;
  for (; at < count && arguments[at][0] == '-' && arguments[at][1]; at++) {
    char *word = arguments[at] + 1;
    if (!strcmp(word, "-")) {
      at++;
      break;
    }
    if (*word == '-') {
      char letter = short_form(word + 1), *value = strchr(word, '=');
      bool takes_next = letter && strchr("uDp", letter) && !value && at + 1 < count;
      if (!letter || !take_option(options, letter, value ? value + 1 : takes_next ? arguments[++at] : NULL)) return false;
      continue;
    }
    for (; *word; word++) {
      bool takes_value = strchr("uDp", *word);
      const char *value = takes_value ? (word[1] ? word + 1 : at + 1 < count ? arguments[++at] : NULL) : NULL;
      if (!take_option(options, *word, value)) return false;
      if (takes_value) break;
    }
  }
  options->first = at;
  return true;
}

// ---- the request

struct payload {
  char *bytes;
  size_t length;
};

static void add(struct payload *payload, const char *text) {
  size_t size = strlen(text) + 1;
  if (payload->length + size > SUDO_PAYLOAD_LIMIT) {
    fprintf(stderr, "sudo: the command and its environment are too long\n");
    exit(1);
  }
  memcpy(payload->bytes + payload->length, text, size);
  payload->length += size;
}

static void add_list(struct payload *payload, char **list, int count) {
  char number[16];
  if (count > SUDO_LIST_LIMIT) {
    fprintf(stderr, "sudo: a command has at most %d arguments\n", SUDO_LIST_LIMIT);
    exit(1);
  }
  snprintf(number, sizeof number, "%d", count);
  add(payload, number);
  for (int i = 0; i < count; i++) add(payload, list[i]);
}

static bool is_variable(const char *word) {
  const char *value = strchr(word, '=');
  return value && value > word && !memchr(word, '/', (size_t)(value - word));
}

static bool send_identity(void) {
  char first = 1;
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(struct ucred))];
  } control = {0};
  struct iovec part = {&first, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_CREDENTIALS;
  header->cmsg_len = CMSG_LEN(sizeof(struct ucred));
  // The kernel refuses the credentials of another user.
  struct ucred own = {.pid = getpid(), .uid = getuid(), .gid = getgid()};
  memcpy(CMSG_DATA(header), &own, sizeof own);
  return sendmsg(connection, &message, MSG_NOSIGNAL) == 1;
}

static bool send_command(const struct options *options, int count, char **arguments) {
  struct payload payload = {.bytes = malloc(SUDO_PAYLOAD_LIMIT)};
  char here[4096];
  if (!payload.bytes) return false;
  if (!options->cwd && !getcwd(here, sizeof here)) strcpy(here, "/");
  int variables = options->first, words = 0;
  while (variables < count && is_variable(arguments[variables])) variables++;
  add(&payload, options->user);
  add(&payload, options->cwd ? options->cwd : here);
  add(&payload, options->flags);
  add_list(&payload, arguments + variables, count - variables);
  add_list(&payload, arguments + options->first, variables - options->first);
  // Leaves out variables that do not fit: the command needs few of them.
  for (char **entry = environ; *entry && words < SUDO_LIST_LIMIT; entry++, words++)
    if (payload.length + strlen(*entry) + 1 <= SUDO_PAYLOAD_LIMIT) add(&payload, *entry);
  unsigned length = (unsigned)payload.length;
  static const int own[] = {0, 1, 2};
  bool sent = send_with_descriptors(connection, &length, sizeof length, own, 3) &&
              write_exactly(connection, payload.bytes, payload.length);
  free(payload.bytes);
  return sent;
}

// ---- while the command runs

static void forward(int signal) {
  int error = errno;
  unsigned char number = (unsigned char)signal;
  struct winsize size;
  if (signal == SIGWINCH && master >= 0 && ioctl(0, TIOCGWINSZ, &size) == 0) ioctl(master, TIOCSWINSZ, &size);
  send(connection, &number, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  errno = error;
}

static void catch_signals(void) {
  static const int SIGNALS[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGCONT};
  struct sigaction action = {.sa_handler = forward, .sa_flags = SA_RESTART};
  for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) {
    struct sigaction before;
    // The command ignores the signals that the caller ignores (nohup).
    if (sigaction(SIGNALS[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGNALS[i], &action, NULL);
  }
}

static void restore_terminal(void) {
  if (is_raw) tcsetattr(0, TCSADRAIN, &plain);
  is_raw = false;
}

static void begin_terminal(void) {
  struct winsize size;
  struct termios raw;
  if (ioctl(0, TIOCGWINSZ, &size) == 0) ioctl(master, TIOCSWINSZ, &size);
  if (tcgetattr(0, &plain)) return;
  tcsetattr(master, TCSANOW, &plain);
  raw = plain;
  cfmakeraw(&raw);
  is_raw = tcsetattr(0, TCSADRAIN, &raw) == 0;
}

static bool copy(int from, int to) {
  char bytes[16 * 1024];
  ssize_t got = read(from, bytes, sizeof bytes);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  return got > 0 && write_exactly(to, bytes, (size_t)got);
}

// Copies the unread output of the command.
static void drain_terminal(void) {
  fcntl(master, F_SETFL, O_NONBLOCK);
  char bytes[16 * 1024];
  for (ssize_t got; (got = read(master, bytes, sizeof bytes)) > 0;)
    if (!write_exactly(1, bytes, (size_t)got)) return;
}

// Returns the status of waitpid, or prints the reason and returns -1.
static int follow(void) {
  bool reads = true;
  for (;;) {
    struct pollfd sources[] = {{.fd = connection, .events = POLLIN},
                               {.fd = master, .events = POLLIN},
                               {.fd = master >= 0 && reads ? 0 : -1, .events = POLLIN}};
    if (poll(sources, 3, -1) < 0) continue;
    if (sources[1].revents & POLLIN) copy(master, 1);
    // The command has closed its terminal and still runs. The pause keeps poll from returning at once, repeatedly.
    else if (sources[1].revents) poll(NULL, 0, 20);
    if (sources[2].revents) reads = copy(0, master);
    if (!sources[0].revents) continue;
    char type;
    int status, got;
    if (master < 0) {
      int received = -1;
      // Only a message with a terminal carries a descriptor, so the type of the message is read first.
      if ((got = (int)recv(connection, &type, 1, MSG_PEEK)) < 0 && errno == EINTR) continue;
      if (got == 1 && type == SUDO_TERMINAL && receive_descriptors(connection, &type, 1, &received, 1) == 1) {
        master = received;
        begin_terminal();
        continue;
      }
    }
    if (!read_exactly(connection, &type, 1)) return -1;
    if (type == SUDO_ENDED && read_exactly(connection, &status, sizeof status)) return status;
    if (type == SUDO_REFUSED) fprintf(stderr, "sudo: your user may not run commands as another user in this machine\n");
    return -1;
  }
}

static int end_as(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  int number = WTERMSIG(status);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  signal(number, SIG_DFL);
  sigprocmask(SIG_UNBLOCK, &only, NULL);
  raise(number);
  return 128 + number;
}

static void open_missing(void) {
  for (int fd; (fd = open("/dev/null", O_RDWR)) >= 0;)
    if (fd > 2) {
      close(fd);
      return;
    }
}

static bool dial(void) {
  struct sockaddr_un address;
  unsigned length = sudo_address(&address);
  connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  return connection >= 0 && connect(connection, (struct sockaddr *)&address, length) == 0;
}

int sudo_client(int count, char **arguments) {
  struct options options = {.user = "root"};
  open_missing();
  bool good = read_options(count, arguments, &options);
  bool runs = good && (options.first < count || strpbrk(options.flags, "is"));
  if (good && !runs && options.only && strchr("kVh", *options.only)) {
    if (*options.only == 'V') puts("sudo of Kontor");
    if (*options.only == 'h') fputs(USAGE, stdout);
    return 0;
  }
  static char *trivial[] = {"sudo", "true", NULL};
  if (good && !runs && options.only) {
    count = 2;
    arguments = trivial;
    options.first = 1;
  } else if (!runs) {
    fputs(USAGE, stderr);
    return 1;
  }
  if (isatty(0)) add_flag(&options, 't');
  if (!dial()) {
    fprintf(stderr, "sudo: this machine's first process does not respond: %s\n", strerror(errno));
    return 1;
  }
  catch_signals();
  // Reads a refusal even if the command could not be sent whole.
  if (send_identity()) send_command(&options, count, arguments);
  int status = follow();
  if (master >= 0) drain_terminal();
  restore_terminal();
  if (status < 0) return 1;
  if (options.only && *options.only == 'l' && !runs) puts("    (ALL : ALL) NOPASSWD: ALL");
  return end_as(status);
}
