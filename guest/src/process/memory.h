// Kills the largest process when the machine's processes use more memory than the machine's size. The host's
// limit lies above the size, because the host would kill the whole machine.
#ifndef KONTOR_MEMORY_H
#define KONTOR_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "frame.h"

struct candidate {
  pid_t pid, session;
  uint64_t bytes;
};

struct victim {
  pid_t pid;     // 0 if no process is killed
  bool is_session; // `pid` is a session of many small processes; all of them are killed
};

// Returns the value of a line such as "AnonPages:       1234 kB", in bytes, or 0 if the line is missing.
uint64_t memory_line(const char *text, const char *name);
// Returns the host memory for `count` processes, without the processes that the headroom covers.
uint64_t memory_of_processes(uint64_t count);
// Returns a time in ms that is too short to fill `left` bytes.
int memory_pause_ms(uint64_t left);
// Chooses the process or session to kill. Sorts the candidates.
struct victim memory_victim(struct candidate *candidates, size_t count, uint64_t limit);

void serve_limit(int connection, const struct request *request);

#endif
