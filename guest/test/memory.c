// memory: tests which process is killed when memory runs out, and the time until the next check.
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"

enum { MIB = 1024 * 1024 };

// Stubs for the functions of process.c that memory.c links to. The test does not call them.
uint64_t now_us(void) { return 0; }
pid_t process_session(pid_t pid) { return pid; }
bool process_end(pid_t pid) { return pid != 0; }
void process_begin_end(pid_t session) { (void)session; }
bool process_end_some(pid_t session) { return session != 0; }
void process_stop_all(pid_t session) { (void)session; }
void process_continue_all(pid_t spared_session) { (void)spared_session; }
bool start_thread(void *(*run)(void *), void *argument) { return run && argument; }

static int failures, checks;

static void check(bool good, const char *what) {
  checks++;
  if (good) return;
  failures++;
  printf("FAILED %s\n", what);
}

static void check_text(void) {
  const char *text = "MemTotal:    1048576 kB\nAnonPages:       12 kB\nMapped:  7 kB\n";
  check(memory_line(text, "AnonPages:") == 12 * 1024, "a line in the middle");
  check(memory_line(text, "MemTotal:") == 1048576ULL * 1024, "the first line of the text");
  check(memory_line(text, "Shmem:") == 0, "a missing line");
  check(memory_line("", "Shmem:") == 0, "no text");
  check(memory_line("AnonPages:", "AnonPages:") == 0, "a truncated line");
}

static void check_pause(void) {
  check(memory_pause_ms(0) > 0, "a pause without any memory left");
  check(memory_pause_ms(8192ULL * MIB) == 250, "the longest pause");
  check(memory_pause_ms(UINT64_MAX) == 250, "more memory than there is");
  check(memory_pause_ms(60 * 1000 * 1000) == 10, "a pause that shrinks with the free memory");
}

static void check_victim(void) {
  struct candidate none[1] = {{0}};
  check(memory_victim(none, 0, MIB).pid == 0, "no process");
  struct candidate two[] = {{.pid = 9, .session = 9, .bytes = 10 * MIB}, {.pid = 7, .session = 7, .bytes = 900 * MIB}};
  struct victim victim = memory_victim(two, 2, 1024ULL * MIB);
  check(victim.pid == 7 && !victim.is_session, "the larger of two");
  struct candidate many[100];
  for (int i = 0; i < 100; i++)
    many[i] = (struct candidate){.pid = 100 + i, .session = i % 2 ? 50 : 60, .bytes = (i % 2 ? 10 : 11) * MIB};
  victim = memory_victim(many, 100, 1024ULL * MIB);
  check(victim.pid == 60 && victim.is_session, "the session with the most memory, of small processes");
  many[3].bytes = 500 * MIB;
  pid_t large = many[3].pid;
  victim = memory_victim(many, 100, 1024ULL * MIB);
  check(victim.pid == large && !victim.is_session, "a large process among many small ones");
  for (int i = 0; i < 100; i++) many[i].session = 1;
  victim = memory_victim(many, 100, 1024ULL * MIB);
  check(!victim.is_session && victim.pid > 1, "never the session of PID 1");
}

static void check_bomb(void) {
  static struct candidate bomb[601];
  for (int i = 0; i < 600; i++) bomb[i] = (struct candidate){.pid = 100 + i, .session = 60, .bytes = MIB / 2};
  bomb[600] = (struct candidate){.pid = 7, .session = 7, .bytes = 60 * MIB};
  struct victim victim = memory_victim(bomb, 601, 512ULL * MIB);
  check(victim.pid == 60 && victim.is_session, "the session of a fork bomb beside a larger process");
}

static void check_processes(void) {
  check(memory_of_processes(100) == 0 && memory_of_processes(1128) == 1000ULL * MIB, "processes that the headroom covers");
}

int main(void) {
  check_text();
  check_pause();
  check_victim();
  check_bomb();
  check_processes();
  printf("memory: %d checks, %d failures\n", checks, failures);
  return failures > 0;
}
