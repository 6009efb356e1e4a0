// Processes: how one is started, how its end becomes known, and who kills it.
//
// Every child is a leader of its own session and group. It is known to the registry from before its first
// instruction, so the reaper (PID 1's duty: it collects every child, ours or an orphan) can never miss one of ours.
#ifndef KONTOR_PROCESS_H
#define KONTOR_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "frame.h"

struct process {
  struct process *next;
  volatile pid_t pid;       // 0 until the child itself has stored it
  int input, output, error; // our ends of its pipes; -1 once closed
  bool on_terminal;         // `input` and `output` are its terminal's master then, and there is no `error`
  int exit_event;           // an eventfd, readable once it has been reaped
  bool exited;              // this and what follows: under the registry's lock until `exit_event` is readable
  bool out_of_memory;       // it or a process of its session was killed because memory ran out
  int status;               // as of waitpid
  uint64_t started_us, ended_us; // CLOCK_MONOTONIC
  volatile int exec_error;  // errno of what failed in the child before its program ran
  const char *volatile exec_stage;
};

uint64_t now_us(void);
uint64_t now_ms(void); // CLOCK_REALTIME

// Starts what a SPAWN request describes. Blocks until its program runs or is known not to.
bool process_start(const struct request *request, struct process **started, struct failure *failure);
// Starts a program of ours as root, in a session of its own, whose descriptor 0 is `connection`. It is in no registry.
bool process_start_helper(int connection, char *const *argv, char *const *env);
// Signals a process's group, or its session where it has a terminal: a shell gives each of its jobs a group. False
// where it has been reaped: its number may be somebody else's by now.
bool process_signal(struct process *process, int signal);
// After SIGKILL ended the process: ends what is left of its group or session.
void process_kill_rest(const struct process *process);
// The same by the number of a leader that the registry knows.
bool process_signal_pid(pid_t pid, int signal);
// Session of a process. 0 if the process does not exist.
pid_t process_session(pid_t pid);
// Kill one process because memory ran out, and record the reason for the process that SPAWN started.
// Return false if nothing was killed.
bool process_end(pid_t pid);
// Stops a session because memory ran out, and records the reason. `process_end_some` then kills a few processes of it
// per call, and returns false once none is left.
void process_begin_end(pid_t session);
bool process_end_some(pid_t session);
// Sends SIGSTOP to a session until none of it runs. Session 0 is every process except PID 1 and the caller. Gives up
// after ten seconds.
void process_stop_all(pid_t session);
// Sends SIGCONT to every process outside of a session.
void process_continue_all(pid_t spared_session);
// Ends the use of a process that has exited. Pipes that its children still hold are read on, to nowhere; a terminal is
// closed, as its window is when its shell ends.
void process_release(struct process *process);

// Writes what is typed at a terminal; answers as write() does. `terminal` is the master, here and below.
ssize_t terminal_write(int terminal, const unsigned char *bytes, size_t length);
// A terminal's size, told to its session by SIGWINCH.
bool terminal_resize(int terminal, const struct process *process, uint64_t cols, uint64_t rows);

// Puts the exit of a process into a reply.
void reply_exit(struct reply *reply, const struct process *process, bool timed_out);

// Bytes that wait in a pipe.
size_t pipe_backlog(int fd);
// A buffer of `size` bytes from a pipe, or 0 at its end.
size_t pipe_read(int fd, void *bytes, size_t size);

// 512 streams need some 2600 descriptors, and a machine that is full of processes one more for whoever ends them; a
// program gets back what the machine gave.
void raise_limits(void);
// A number for /proc/PID/oom_score_adj: what the kernel is to end before PID 1.
void set_children_oom_score(const char *score);

void reap_children(void);
bool start_thread(void *(*run)(void *), void *argument);
bool start_drainer(void);

#endif
