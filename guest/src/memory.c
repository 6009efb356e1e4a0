// The size of a machine is what its processes may use together. gVisor's kernel has no out-of-memory killer, and the
// host's would end the whole machine, so this thread is the killer. It looks the more often the less is left.
//
// AnonPages of /proc/meminfo counts private memory and tmpfs, as they are committed on the host. MemFree is of no use:
// it also counts mapped files, which the host can drop.
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
  // Faster than two cores fill memory inside gVisor; measured 1.2 GB/s on one.
  FILL_BYTES_PER_MS = 6 * 1000 * 1000,
  PAUSE_FIRST_MS = 3,
  PAUSE_LAST_MS = 250,
  GONE_WITHIN_MS = 300,
  // What the host keeps for each process beside its memory: measured, 0.5 MB for `sleep` and 0.9 MB for a bash. The
  // headroom covers this for the first ones.
  PROCESS_BYTES = 1024 * 1024,
  COVERED_PROCESSES = 128,
  // A process smaller than this part of the size is not the one to blame.
  SMALL_PART = 32,
  MANY = 32,
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
    // A session of PID 1 or of none is that of unrelated processes.
    if (candidates[i].session > 1 && bytes > widest.bytes) {
      widest = (struct candidate){.session = candidates[i].session, .bytes = bytes};
      members = next - i;
    }
  }
  if (members >= MANY && largest.bytes < limit / SMALL_PART)
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

// What is used of `limit`: memory, and what the host keeps for each process. The second is asked for where it matters.
static uint64_t used_bytes(uint64_t limit, uint64_t tasks) {
  char text[4096];
  read_text("/proc/meminfo", text, sizeof text);
  uint64_t memory = memory_line(text, "AnonPages:");
  // A process may have many tasks, and only processes cost the host that much.
  if (memory + memory_of_processes(tasks) < limit) return memory + memory_of_processes(tasks);
  return memory + memory_of_processes(count_processes());
}

static size_t find_candidates(struct candidate *candidates) {
  size_t count = 0;
  DIR *processes = opendir("/proc");
  for (struct dirent *entry; processes && count < CANDIDATE_LIMIT && (entry = readdir(processes));) {
    pid_t pid = (pid_t)atoi(entry->d_name);
    if (!is_process(entry) || pid == getpid()) continue;
    uint64_t bytes = resident_bytes(pid);
    if (!bytes) continue;
    candidates[count++] = (struct candidate){.pid = pid, .session = process_session(pid), .bytes = bytes};
  }
  if (processes) closedir(processes);
  return count;
}

// Until its memory is given back; one that hangs in its end does not keep others from being ended.
static void wait_until_gone(pid_t pid) {
  uint64_t deadline = now_us() + GONE_WITHIN_MS * 1000;
  while (resident_bytes(pid) > 0 && now_us() < deadline) poll(NULL, 0, 1);
}

static void relieve(struct candidate *candidates, uint64_t limit) {
  struct victim victim = memory_victim(candidates, find_candidates(candidates), limit);
  if (!victim.pid) poll(NULL, 0, PAUSE_LAST_MS);
  else if (victim.is_session) process_end_session(victim.pid);
  else if (process_end(victim.pid)) wait_until_gone(victim.pid);
}

static void *watch(void *unused) {
  (void)unused;
  static struct candidate candidates[CANDIDATE_LIMIT];
  for (;;) {
    struct sysinfo info;
    uint64_t tasks = sysinfo(&info) == 0 ? info.procs : 0;
    uint64_t limit = atomic_load(&limit_bytes), used = used_bytes(limit, tasks);
    if (used > limit) relieve(candidates, limit);
    else poll(NULL, 0, memory_pause_ms(limit - used));
  }
  return NULL;
}

void serve_limit(int connection, const struct request *request) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static bool watches;
  if (!request->has[F_MEMORY] || request->number[F_MEMORY] == 0) {
    send_error(connection, "guest_protocol", "no size of the memory");
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
