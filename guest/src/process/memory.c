// Out-of-memory killer. The size of a machine is the memory that its processes may use together. gVisor's kernel has no
// such killer, and that of the host would kill the whole machine. This thread checks more often when less memory is
// left.
//
// AnonPages of /proc/meminfo counts private memory and tmpfs, as the host has committed them. MemFree is
// unsuitable: it includes mapped files, which the host can drop.
#define _GNU_SOURCE
#include "memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "process.h"

enum {
  CANDIDATE_LIMIT = 8192,
  // Upper bound of the rate at which two cores fill memory inside gVisor. Measured: 1.2 GB/s on one core.
  FILL_BYTES_PER_MS = 6 * 1000 * 1000,
  PAUSE_FIRST_MS = 3,
  PAUSE_LAST_MS = 250,
  RELEASE_WITHIN_MS = 5000,
  GROWTH_PART = 64,
  END_ROUND_MS = 20,
  END_WITHIN_MS = 60 * 1000,
  // Host memory for each process, in addition to the process's own memory: measured, 0.5 MB for `sleep` and 0.9 MB for
  // bash. The headroom covers the first processes.
  PROCESS_BYTES = 1024 * 1024,
  COVERED_PROCESSES = 128,
  // A process smaller than this fraction of the machine's size is not the cause.
  SMALL_PART = 32,
  MANY = 32,
  CROWD_PART = 4,
};

static _Atomic uint64_t limit_bytes;

uint64_t memory_line(const char *text, const char *name) {
  size_t length = strlen(name);
  for (const char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
    if (!strncmp(line, name, length)) return strtoull(line + length, NULL, 10) * 1024;
  return 0;
}

int memory_pause_ms(uint64_t left) {
  uint64_t pause = left / FILL_BYTES_PER_MS;
  if (pause < PAUSE_FIRST_MS) return PAUSE_FIRST_MS;
  return pause > PAUSE_LAST_MS ? PAUSE_LAST_MS : (int)pause;
}

uint64_t memory_of_processes(uint64_t count) {
  return count > COVERED_PROCESSES ? (count - COVERED_PROCESSES) * PROCESS_BYTES : 0;
}

static int by_session(const void *a, const void *b) {
  const struct candidate *one = a, *other = b;
  return (one->session > other->session) - (one->session < other->session);
}

struct victim memory_victim(struct candidate *candidates, size_t count, uint64_t limit) {
  struct candidate largest = {0}, widest = {0};
  size_t members = 0;
  qsort(candidates, count, sizeof *candidates, by_session);
  for (size_t i = 0, next; i < count; i = next) {
    uint64_t bytes = 0;
    for (next = i; next < count && candidates[next].session == candidates[i].session; next++) {
      bytes += candidates[next].bytes;
      if (candidates[next].bytes > largest.bytes) largest = candidates[next];
    }
    // Session 1 and session 0 contain unrelated processes.
    if (candidates[i].session > 1 && bytes > widest.bytes) {
      widest = (struct candidate){.session = candidates[i].session, .bytes = bytes};
      members = next - i;
    }
  }
  // The host memory of a fork bomb's processes exceeds their own memory, so no larger process is the cause.
  if (members >= MANY && (largest.bytes < limit / SMALL_PART || largest.bytes < memory_of_processes(members)))
    return (struct victim){.pid = widest.session, .is_session = true};
  return (struct victim){.pid = largest.pid};
}

static size_t read_text(const char *path, char *text, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text[0] = 0;
  ssize_t got;
  while ((got = read(fd, text, size - 1)) < 0 && errno == EINTR);
  close(fd);
  text[got > 0 ? got : 0] = 0;
  return got > 0 ? (size_t)got : 0;
}

static uint64_t resident_bytes(pid_t pid) {
  char path[64], text[256];
  unsigned long size, resident;
  snprintf(path, sizeof path, "/proc/%d/statm", pid);
  if (!read_text(path, text, sizeof text) || sscanf(text, "%lu %lu", &size, &resident) != 2) return 0;
  return (uint64_t)resident * 4096;
}

static bool is_process(const struct dirent *entry) { return entry->d_name[0] >= '1' && entry->d_name[0] <= '9'; }

static size_t count_processes(void) {
  size_t count = 0;
  DIR *processes = opendir("/proc");
  for (struct dirent *entry; processes && (entry = readdir(processes));) count += is_process(entry);
  if (processes) closedir(processes);
  return count;
}

// Returns the memory in use: the processes' own memory, and the host memory of each. Counts the processes only if the
// result is near `limit`.
static uint64_t used_bytes(uint64_t limit, uint64_t tasks) {
  char text[4096];
  read_text("/proc/meminfo", text, sizeof text);
  uint64_t memory = memory_line(text, "AnonPages:");
  // A process may have many tasks, but each process costs the host this memory only once.
  if (memory + memory_of_processes(tasks) < limit) return memory + memory_of_processes(tasks);
  return memory + memory_of_processes(count_processes());
}

static size_t find_candidates(struct candidate *candidates, pid_t spared_session) {
  size_t count = 0;
  DIR *processes = opendir("/proc");
  for (struct dirent *entry; processes && count < CANDIDATE_LIMIT && (entry = readdir(processes));) {
    pid_t pid = (pid_t)atoi(entry->d_name);
    if (!is_process(entry) || pid == getpid()) continue;
    uint64_t bytes = resident_bytes(pid);
    if (!bytes) continue;
    pid_t session = process_session(pid);
    if (spared_session && session == spared_session) continue;
    candidates[count++] = (struct candidate){.pid = pid, .session = session, .bytes = bytes};
  }
  if (processes) closedir(processes);
  return count;
}

static uint64_t count_tasks(void) {
  struct sysinfo info;
  return sysinfo(&info) == 0 ? info.procs : 0;
}

// Waits while the memory of killed processes is released, which takes seconds on a busy host. Without this wait, the
// next process would be killed too. Returns early if other processes fill memory faster than it is released.
static void wait_for_release(uint64_t limit) {
  uint64_t deadline = now_us() + RELEASE_WITHIN_MS * 1000ULL, lowest = UINT64_MAX;
  for (;;) {
    uint64_t used = used_bytes(limit, count_tasks());
    if (used < lowest) lowest = used;
    if (used <= limit || used - lowest > limit / GROWTH_PART || now_us() > deadline) return;
    poll(NULL, 0, 1);
  }
}

// Returns whether processes account for much of the memory. All processes are then stopped during the read, because a
// fork bomb leaves this thread no processor time. Measured: reading a thousand processes took 34 s, and the machine ran
// out of memory before that.
static bool is_crowded(uint64_t limit, uint64_t tasks) { return memory_of_processes(tasks) > limit / CROWD_PART; }

// Kills the largest process, or starts to end a session and returns it. Spares the session `ending`, which is ending
// already.
static pid_t relieve(struct candidate *candidates, uint64_t limit, pid_t ending) {
  struct victim victim = memory_victim(candidates, find_candidates(candidates, ending), limit);
  if (!victim.pid) poll(NULL, 0, PAUSE_LAST_MS);
  else if (victim.is_session) process_begin_end(victim.pid);
  else if (process_end(victim.pid)) wait_for_release(limit);
  return victim.is_session ? victim.pid : ending;
}

// A session of a thousand processes takes half a minute to end, while other processes run. So each round kills a few of
// its processes. A process of another session is killed only if memory use exceeds its level at the start of that end.
static void *watch(void *unused) {
  (void)unused;
  static struct candidate candidates[CANDIDATE_LIMIT];
  pid_t ending = 0;
  uint64_t threshold = 0, deadline = 0;
  for (;;) {
    if (ending && (!process_end_some(ending) || now_us() > deadline)) ending = 0;
    uint64_t tasks = count_tasks();
    uint64_t limit = atomic_load(&limit_bytes), used = used_bytes(limit, tasks);
    if (!ending || threshold < limit) threshold = limit;
    if (used > threshold) {
      bool crowded = is_crowded(limit, tasks);
      if (crowded) process_stop_all(0);
      pid_t next = relieve(candidates, limit, ending);
      if (crowded) process_continue_all(next);
      if (next != ending) threshold = used, deadline = now_us() + END_WITHIN_MS * 1000ULL;
      ending = next;
    } else {
      int pause = memory_pause_ms(threshold - used);
      poll(NULL, 0, ending && pause > END_ROUND_MS ? END_ROUND_MS : pause);
    }
  }
  return NULL;
}

void serve_limit(int connection, const struct request *request) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static bool watches;
  if (!request->has[F_MEMORY] || request->number[F_MEMORY] == 0) {
    send_error(connection, "guest_protocol", "memory is missing: it is the size in bytes");
    return;
  }
  pthread_mutex_lock(&lock);
  atomic_store(&limit_bytes, request->number[F_MEMORY]);
  if (!watches) watches = start_thread(watch, NULL);
  bool done = watches;
  pthread_mutex_unlock(&lock);
  if (done) send_empty(connection, OK);
  else send_error(connection, "failed", "no thread to watch the memory");
}
