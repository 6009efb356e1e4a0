// Programs count processors by their affinity (nproc, Go, Rust, OpenMP), by files of /sys (sysconf, so
// Python), or by /proc/cpuinfo and /proc/stat (Node). gVisor's scheduler ignores the affinity, so a machine
// can still burst. The files are bind-mounted copies. gVisor's /proc/stat is constant, so a copy loses
// nothing.
#define _GNU_SOURCE
#include "cpus.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "frame.h"

enum { TEXT_SIZE = 64 * 1024 };

static cpu_set_t child_cpus;
static int shown; // number of processors that are shown; 0 before a LIMIT changes it

void limit_child_cpus(void) {
  if (shown > 0) syscall(SYS_sched_setaffinity, 0, sizeof child_cpus, &child_cpus);
}

// Root of the machine may have put a FIFO at the path, and opening a FIFO would block forever: hence
// O_NONBLOCK, here and below.
static void read_text(const char *path, char *text) {
  size_t length = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  for (ssize_t got; fd >= 0 && (got = read(fd, text + length, TEXT_SIZE - 1 - length)) > 0;) length += (size_t)got;
  if (fd >= 0) close(fd);
  text[length] = 0;
}

static void write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd < 0) return;
  write_exactly(fd, text, strlen(text));
  close(fd);
}

// Copies from a text the lines of the first `count` processors, and the lines that belong to no processor.
static void filter(const char *from, char *to, int count) {
  int block = 0; // index of the block in /proc/cpuinfo
  for (const char *line = from, *end; *line; line = end) {
    end = strchrnul(line, '\n');
    if (*end) end++;
    int number;
    if (sscanf(line, "processor : %d", &number) == 1) block = number;
    bool is_left_out = block >= count || (sscanf(line, "cpu%d ", &number) == 1 && number >= count);
    if (!is_left_out) to = (char *)memcpy(to, line, (size_t)(end - line)) + (end - line);
  }
  *to = 0;
}

// The kernel's own texts, read before anything is mounted over them.
static struct view {
  const char *path, *copy;
  char *text;
} VIEWS[] = {
    {"/proc/cpuinfo", "/dev/.cpus-info", NULL},
    {"/proc/stat", "/dev/.cpus-stat", NULL},
    {"/sys/devices/system/cpu/online", "/dev/.cpus-online", NULL},
    {"/sys/devices/system/cpu/possible", "/dev/.cpus-possible", NULL},
    {"/sys/devices/system/cpu/present", "/dev/.cpus-present", NULL},
};
enum { VIEW_COUNT = sizeof VIEWS / sizeof *VIEWS };

static void show(struct view *view, int count) {
  char *text = malloc(TEXT_SIZE);
  if (!text) return;
  if (strncmp(view->path, "/sys/", 5) == 0) snprintf(text, TEXT_SIZE, count > 1 ? "0-%d\n" : "0\n", count - 1);
  else filter(view->text, text, count);
  write_text(view->copy, text);
  free(text);
}

static bool mount_views(int count) {
  for (struct view *view = VIEWS; view < VIEWS + VIEW_COUNT; view++) {
    if (!view->text && !(view->text = malloc(TEXT_SIZE))) return false;
    read_text(view->path, view->text);
  }
  for (struct view *view = VIEWS; view < VIEWS + VIEW_COUNT; view++) {
    show(view, count);
    if (mount(view->copy, view->path, NULL, MS_BIND, NULL)) unlink(view->copy);
  }
  return true;
}

void limit_cpus(uint64_t wanted) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static int all;
  if (wanted == 0) return;
  pthread_mutex_lock(&lock);
  if (all == 0) all = (int)sysconf(_SC_NPROCESSORS_ONLN);
  int count = wanted < (uint64_t)all ? (int)wanted : all;
  if (count > 0 && count < CPU_SETSIZE && count != (shown > 0 ? shown : all)) {
    bool is_mounted = shown > 0;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (int cpu = 0; cpu < count; cpu++) CPU_SET(cpu, &cpus);
    child_cpus = cpus;
    if (is_mounted || mount_views(count)) shown = count;
    for (struct view *view = VIEWS; is_mounted && view < VIEWS + VIEW_COUNT; view++) show(view, count);
  }
  pthread_mutex_unlock(&lock);
}
