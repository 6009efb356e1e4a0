#define _GNU_SOURCE
#include "machine.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- users. The files are parsed here: getpwnam in a static glibc loads the host's NSS modules, or crashes if they
// are missing.

// Splits a line at its colons, in place. Returns the number of fields.
static int split(char *line, char *fields[], int limit) {
  int count = 0;
  line[strcspn(line, "\n")] = 0;
  for (char *rest = line; rest && count < limit;) fields[count++] = strsep(&rest, ":");
  return count;
}

static bool is_number(const char *text) {
  size_t length = strlen(text);
  return length > 0 && length < 10 && strspn(text, "0123456789") == length;
}

static void take_text(char *into, size_t size, const char *text) { snprintf(into, size, "%s", text); }

static bool is_member(char *members, const char *name) {
  for (char *member; (member = strsep(&members, ","));)
    if (!strcmp(member, name)) return true;
  return false;
}

static void find_groups(struct user *user) {
  char line[4096], *fields[4];
  FILE *file = fopen("/etc/group", "re");
  if (!file) return;
  while (user->group_count < 64 && fgets(line, sizeof line, file))
    if (split(line, fields, 4) == 4 && is_number(fields[2]) && is_member(fields[3], user->name))
      user->groups[user->group_count++] = (unsigned)atoi(fields[2]);
  fclose(file);
}

static bool read_group(const char *wanted, unsigned *gid) {
  bool found = is_number(wanted);
  if (found) *gid = (unsigned)atoi(wanted);
  char line[4096], *fields[4];
  FILE *file = found ? NULL : fopen("/etc/group", "re");
  while (file && !found && fgets(line, sizeof line, file)) {
    if (split(line, fields, 4) < 3 || strcmp(fields[0], wanted) || !is_number(fields[2])) continue;
    found = true;
    *gid = (unsigned)atoi(fields[2]);
  }
  if (file) fclose(file);
  return found;
}

// Reads `user` or `user:group`, by names or numbers. A named group is the process's only group (as in OCI images).
static bool read_user(const char *given, struct user *user, struct failure *failure) {
  char wanted[256];
  size_t length = strcspn(given, ":");
  if (length >= sizeof wanted) return fail(failure, "exec_failed", "unknown user %.100s", given);
  snprintf(wanted, sizeof wanted, "%.*s", (int)length, given);
  const char *group = given[length] ? given + length + 1 : NULL;
  bool numeric = is_number(wanted), found = false;
  char line[2048], *fields[7];
  memset(user, 0, sizeof *user);
  FILE *file = fopen("/etc/passwd", "re");
  while (file && !found && fgets(line, sizeof line, file)) {
    if (split(line, fields, 7) < 7 || !is_number(fields[2]) || !is_number(fields[3])) continue;
    found = !strcmp(fields[numeric ? 2 : 0], wanted);
    if (!found) continue;
    user->uid = (unsigned)atoi(fields[2]);
    user->gid = (unsigned)atoi(fields[3]);
    take_text(user->name, sizeof user->name, fields[0]);
    take_text(user->home, sizeof user->home, *fields[5] ? fields[5] : "/");
    take_text(user->shell, sizeof user->shell, *fields[6] ? fields[6] : "/bin/sh");
  }
  if (file) fclose(file);
  if (!found) {
    bool is_root = !strcmp(wanted, "root");
    if (!numeric && !is_root) return fail(failure, "exec_failed", "unknown user %.100s", wanted);
    user->uid = user->gid = (unsigned)atoi(wanted);
    take_text(user->name, sizeof user->name, wanted);
    take_text(user->home, sizeof user->home, user->uid == 0 ? "/root" : "/");
    take_text(user->shell, sizeof user->shell, "/bin/sh");
  }
  if (!group) find_groups(user);
  else if (!read_group(group, &user->gid)) return fail(failure, "exec_failed", "unknown group %.100s", group);
  return true;
}

// Change times of the two files with users. Opening and reading the files costs about a millisecond inside gVisor;
// reading their change times costs a tenth of that.
struct stamp {
  struct timespec changed;
  ino_t inode;
  off_t size;
};

static struct stamp stamp_of(const char *path) {
  struct stat info;
  if (stat(path, &info)) return (struct stamp){0};
  return (struct stamp){info.st_ctim, info.st_ino, info.st_size};
}

static bool is_same(struct stamp a, struct stamp b) {
  return a.changed.tv_sec == b.changed.tv_sec && a.changed.tv_nsec == b.changed.tv_nsec && a.inode == b.inode &&
         a.size == b.size;
}

bool find_user(const char *wanted, struct user *user, struct failure *failure) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static struct user last; // the user of the last request, because almost every process has the same user
  static char last_wanted[64];
  static struct stamp last_users, last_groups;
  struct stamp users = stamp_of("/etc/passwd"), groups = stamp_of("/etc/group");
  pthread_mutex_lock(&lock);
  bool known = last_wanted[0] && !strcmp(last_wanted, wanted) && is_same(users, last_users) &&
               is_same(groups, last_groups);
  if (known) *user = last;
  pthread_mutex_unlock(&lock);
  if (known) return true;
  if (!read_user(wanted, user, failure)) return false;
  pthread_mutex_lock(&lock);
  if (strlen(wanted) < sizeof last_wanted) {
    strcpy(last_wanted, wanted);
    last = *user;
    last_users = users;
    last_groups = groups;
  }
  pthread_mutex_unlock(&lock);
  return true;
}

// ---- environment

static pthread_mutex_t base_lock = PTHREAD_MUTEX_INITIALIZER;
static char **base; // NULL-terminated, one block; replaced whole by CONFIGURE
static size_t base_count;

// Copies a NULL-terminated list and its texts into one block, which a single free() releases. Returns the block.
static char **copy_list(char *const *entries, size_t count) {
  size_t bytes = (count + 1) * sizeof(char *);
  for (size_t i = 0; i < count; i++) bytes += strlen(entries[i]) + 1;
  char **list = malloc(bytes);
  if (!list) return NULL;
  char *text = (char *)(list + count + 1);
  for (size_t i = 0; i < count; i++) {
    list[i] = text;
    text = stpcpy(text, entries[i]) + 1;
  }
  list[count] = NULL;
  return list;
}

// Adds a variable, or replaces an earlier variable of the same name.
static void put(char **list, size_t *count, char *entry) {
  size_t name = strcspn(entry, "=") + 1, i = 0;
  while (i < *count && strncmp(list[i], entry, name)) i++;
  list[i] = entry;
  if (i == *count) ++*count;
}

char **make_environment(const struct user *user, char *const *extra, size_t extra_count) {
  char home[600], name[300], logname[300], shell[300];
  snprintf(home, sizeof home, "HOME=%s", user->home);
  snprintf(name, sizeof name, "USER=%s", user->name);
  snprintf(logname, sizeof logname, "LOGNAME=%s", user->name);
  snprintf(shell, sizeof shell, "SHELL=%s", user->shell);
  char *defaults[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", home, name,
                      logname, shell};
  size_t default_count = sizeof defaults / sizeof *defaults, count = 0;
  pthread_mutex_lock(&base_lock);
  char **list = malloc((default_count + base_count + extra_count + 1) * sizeof(char *)), **copy = NULL;
  if (list) {
    for (size_t i = 0; i < default_count; i++) put(list, &count, defaults[i]);
    for (size_t i = 0; i < base_count; i++) put(list, &count, base[i]);
    for (size_t i = 0; i < extra_count; i++) put(list, &count, extra[i]);
    copy = copy_list(list, count);
  }
  pthread_mutex_unlock(&base_lock);
  free(list);
  return copy;
}

// ---- name

static bool is_hostname(const char *name) {
  size_t length = strlen(name);
  for (size_t i = 0; i < length; i++)
    if (!isalnum((unsigned char)name[i]) && name[i] != '-' && name[i] != '.') return false;
  return length > 0 && length <= 63;
}

// Writes in place, not by rename: the file may be a bind mount, which a rename cannot replace.
static void overwrite(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  write_exactly(fd, text, strlen(text));
  close(fd);
}

// Writes the guest's own line to /etc/hosts, which has a comment as its mark, and keeps every other line.
static void write_hosts(const char *hostname) {
  static const char MARK[] = "# this machine";
  char line[1024], *text = calloc(1, 64 * 1024);
  size_t at = 0;
  FILE *file = fopen("/etc/hosts", "re");
  while (text && file && fgets(line, sizeof line, file))
    if (!strstr(line, MARK) && at + strlen(line) < 60 * 1024) at += (size_t)sprintf(text + at, "%s", line);
  if (file) fclose(file);
  if (!text) return;
  if (at == 0) at = (size_t)sprintf(text, "127.0.0.1 localhost\n::1 localhost\n");
  if (text[at - 1] != '\n') text[at++] = '\n';
  sprintf(text + at, "127.0.1.1 %s %s\n", hostname, MARK);
  overwrite("/etc/hosts", text);
  free(text);
}

// Derives the machine's id from its name: two machines of one snapshot get different ids, and a resumed
// machine keeps its own. FNV-1a of 128 bits spreads the names. The id need not be secret (machine-id(5)).
static void write_machine_id(const char *hostname) {
  unsigned __int128 id = (unsigned __int128)0x6c62272e07bb0142 << 64 | 0x62b821756295c58d;
  const unsigned __int128 prime = (unsigned __int128)1 << 88 | 0x13b;
  char text[34];
  for (; *hostname; hostname++) id = (id ^ (unsigned char)*hostname) * prime;
  snprintf(text, sizeof text, "%016llx%016llx\n", (unsigned long long)(id >> 64), (unsigned long long)id);
  overwrite("/etc/machine-id", text);
}

// Renews the seed that systemd would give to the kernel's random numbers at the next boot. Two machines must
// not have the same seed.
static void renew_random_seed(void) {
  char seed[512];
  int fd = open("/var/lib/systemd/random-seed", O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (fd < 0) return;
  if (getrandom(seed, sizeof seed, 0) == sizeof seed) write_exactly(fd, seed, sizeof seed);
  close(fd);
}

// Returns whether the machine has this name already. Setting a name needs a capability that PID 1 lacks in a machine on
// the host's kernel. Such a machine has its name from the start.
static bool has_name(const char *hostname) {
  char name[65] = "";
  return gethostname(name, sizeof name - 1) == 0 && !strcmp(name, hostname);
}

void serve_configure(int connection, const struct request *request) {
  const char *hostname = request->text[F_HOSTNAME];
  if (hostname && !is_hostname(hostname)) {
    send_error(connection, "guest_protocol", "hostname is not a valid host name");
    return;
  }
  char **list = copy_list(request->env, request->env_count);
  if (!list) {
    send_error(connection, "failed", "no memory");
    return;
  }
  pthread_mutex_lock(&base_lock);
  char **old = base;
  base = list;
  base_count = request->env_count;
  pthread_mutex_unlock(&base_lock);
  free(old);
  if (hostname) {
    char text[80];
    if (!has_name(hostname) && sethostname(hostname, strlen(hostname))) {
      send_error(connection, "not_permitted", "cannot set the host name");
      return;
    }
    snprintf(text, sizeof text, "%s\n", hostname);
    overwrite("/etc/hostname", text);
    write_hosts(hostname);
    write_machine_id(hostname);
    renew_random_seed();
  }
  send_empty(connection, OK);
}

// ---- obstacles to a checkpoint: deleted files still in use on the volume, and TCP connections that leave
// the machine

static bool send_blocker(int connection, int pid, const char *comm, const char *reason, const char *path) {
  struct reply reply;
  reply_begin(&reply, BLOCKER);
  reply_number(&reply, F_PID, (uint64_t)pid);
  reply_text(&reply, F_COMM, comm);
  reply_text(&reply, F_REASON, reason);
  reply_text(&reply, F_PATH, path);
  return send_reply(connection, &reply);
}

// True for a deleted file on the volume. `target` is a link of /proc, or a name in a process's maps: "/persist/...
// (deleted)".
static bool is_deleted_on_volume(const char *target) {
  static const char volume[] = "/persist/", deleted[] = " (deleted)";
  size_t length = strlen(target), end = sizeof deleted - 1;
  return !strncmp(target, volume, sizeof volume - 1) && length > end && !strcmp(target + length - end, deleted);
}

static bool names_deleted(const char *link, char *target, size_t size) {
  ssize_t length = readlink(link, target, size - 1);
  target[length < 0 ? 0 : length] = 0;
  return is_deleted_on_volume(target);
}

// Finds the first deleted file that is mapped, such as a replaced library.
static bool maps_deleted(int pid, char *target, size_t size) {
  char path[64], line[4400];
  bool is_found = false;
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  FILE *file = fopen(path, "re");
  while (file && !is_found && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    const char *name = strchr(line, '/');
    if (!name || !is_deleted_on_volume(name)) continue;
    snprintf(target, size, "%s", name);
    is_found = true;
  }
  if (file) fclose(file);
  return is_found;
}

static void find_deleted_files(int connection, int pid, int *left) {
  char directory[64], path[4200], target[4200], comm[64] = "";
  snprintf(path, sizeof path, "/proc/%d/comm", pid);
  FILE *file = fopen(path, "re");
  if (file && fgets(comm, sizeof comm, file)) comm[strcspn(comm, "\n")] = 0;
  if (file) fclose(file);
  bool is_found = false;
  snprintf(directory, sizeof directory, "/proc/%d/fd", pid);
  DIR *fds = opendir(directory);
  for (struct dirent *entry; fds && *left > 0 && (entry = readdir(fds));) {
    snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    if (!names_deleted(path, target, sizeof target)) continue;
    --*left;
    is_found = true;
    send_blocker(connection, pid, comm, "deleted_file", target);
  }
  if (fds) closedir(fds);
  // The first deleted file is enough to name the process.
  static const char *const others[] = {"cwd", "exe"};
  for (size_t i = 0; i < sizeof others / sizeof *others && !is_found; i++) {
    snprintf(path, sizeof path, "/proc/%d/%s", pid, others[i]);
    is_found = names_deleted(path, target, sizeof target);
    if (!is_found) continue;
    --*left;
    send_blocker(connection, pid, comm, "deleted_file", target);
  }
  if (is_found || *left <= 0 || !maps_deleted(pid, target, sizeof target)) return;
  --*left;
  send_blocker(connection, pid, comm, "deleted_file", target);
}

static void find_connections(int connection, const char *table, int *left) {
  char line[512], local[64], remote[64];
  unsigned state;
  FILE *file = fopen(table, "re");
  while (file && *left > 0 && fgets(line, sizeof line, file)) {
    if (sscanf(line, " %*d: %63s %63s %x", local, remote, &state) != 3 || state == 0x0a) continue;
    size_t address = strcspn(local, ":");
    // 127.0.0.0/8 as the kernel prints it (little endian: its last two digits), ::1, and ::ffff:127.x
    bool loopback = (address == 8 && !strncmp(local + 6, "7F", 2)) ||
                    (address == 32 && !strncmp(local, "00000000000000000000000001000000", 32)) ||
                    (address == 32 && !strncmp(local, "0000000000000000FFFF0000", 24) && !strncmp(local + 30, "7F", 2));
    if (loopback) continue;
    --*left;
    send_blocker(connection, 0, "", "tcp_connection", remote);
  }
  if (file) fclose(file);
}

void serve_blockers(int connection) {
  int left = 100;
  DIR *processes = opendir("/proc");
  for (struct dirent *entry; processes && left > 0 && (entry = readdir(processes));)
    if (is_number(entry->d_name)) find_deleted_files(connection, atoi(entry->d_name), &left);
  if (processes) closedir(processes);
  find_connections(connection, "/proc/net/tcp", &left);
  find_connections(connection, "/proc/net/tcp6", &left);
  send_empty(connection, END);
}
