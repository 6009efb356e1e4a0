// Memory: ends the largest process when the machine's processes use more than the machine's size, before the host's
// limit, which lies above the size, ends the machine.
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
  pid_t pid;     // 0: there is none
  bool is_session; // `pid` is a session, and all of it ends: no process of it is large, and together they are
};

// The value of a line such as "AnonPages:       1234 kB", in bytes; 0 where there is none.
uint64_t memory_line(const char *text, const char *name);
// What the host's headroom for processes does not cover of so many of them.
uint64_t memory_of_processes(uint64_t count);
// How long memory cannot run out, in ms, with so many bytes left.
int memory_pause_ms(uint64_t left);
// Who is to end. Sorts the candidates.
struct victim memory_victim(struct candidate *candidates, size_t count, uint64_t limit);

void serve_limit(int connection, const struct request *request);

#endif
