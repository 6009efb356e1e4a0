// Starts processes, observes their ends, and kills them.
//
// Every child leads its own session and group. The registry knows a child before its first instruction, so
// the reaper cannot miss one. The reaper is a duty of PID 1: it collects every child and every orphan.
#ifndef KONTOR_PROCESS_H
#define KONTOR_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "frame.h"

struct process {
  struct process *next;
  volatile pid_t pid;       // 0 until the child has stored its process id
  int input, output, error; // the guest's ends of the pipes; -1 once closed
  bool on_terminal;         // on a terminal, `input` and `output` are its master, and `error` is unused
  int exit_event;           // an eventfd, readable once the process has been reaped
  bool exited;              // this field and those below: under the registry's lock until `exit_event` is readable
  bool out_of_memory;       // memory ran out, and a process of this session was killed
  int status;               // status of waitpid
  uint64_t started_us, ended_us; // CLOCK_MONOTONIC
  volatile int exec_error;  // errno of the step that failed in the child before exec
  const char *volatile exec_stage;
};

uint64_t now_us(void);
uint64_t now_ms(void); // CLOCK_REALTIME

// Starts the process that a SPAWN request describes. Blocks until exec has succeeded or failed.
bool process_start(const struct request *request, struct process **started, struct failure *failure);
// Starts a helper program as root in its own session, with `connection` as descriptor 0. The registry does not contain
// the helper.
bool process_start_helper(int connection, char *const *argv, char *const *env);
// Signals the process's group. Signals the whole session if it has a terminal, because a shell gives each job its own
// group. Returns false if the process was reaped: its number may belong to another process by now.
bool process_signal(struct process *process, int signal);
// Kills the rest of the process's group or session, after SIGKILL ended the process.
void process_kill_rest(const struct process *process);
// Signals the group of the leader with this number, if the registry contains it.
bool process_signal_pid(pid_t pid, int signal);
// Returns the session of a process, or 0 if the process does not exist.
pid_t process_session(pid_t pid);
// Kill one process because memory ran out, and record the reason for the process that SPAWN started. Return false if no
// process was killed.
bool process_end(pid_t pid);
// Stops a session because memory ran out, and records the reason. `process_end_some` then kills a few processes of the
// session per call, and returns false once none is left.
void process_begin_end(pid_t session);
bool process_end_some(pid_t session);
// Sends SIGSTOP to a session until none of its processes runs. Session 0 is every process except PID 1 and the caller.
// Returns after at most ten seconds.
void process_stop_all(pid_t session);
// Sends SIGCONT to every process outside of a session.
void process_continue_all(pid_t spared_session);
// Releases a process that has exited. Output in pipes that its children still keep open is read and discarded. A
// terminal is closed, as a terminal window closes when its shell ends.
void process_release(struct process *process);

// Writes keyboard input to a terminal. Returns what write() returns. `terminal` is the master, here and
// below.
ssize_t terminal_write(int terminal, const unsigned char *bytes, size_t length);
// Sets a terminal's size and sends SIGWINCH to its session.
bool terminal_resize(int terminal, const struct process *process, uint64_t cols, uint64_t rows);

// Puts the exit of a process into a reply.
void reply_exit(struct reply *reply, const struct process *process, bool timed_out);

// Returns the number of bytes that wait in a pipe.
size_t pipe_backlog(int fd);
// Reads up to `size` bytes from a pipe. Returns 0 at its end.
size_t pipe_read(int fd, void *bytes, size_t size);

// Raises the limits of PID 1. 512 streams need about 2600 descriptors, and a machine at its limit of processes needs
// one more process to end them. A program gets the machine's original limits.
void raise_limits(void);
// Sets the oom_score_adj of every child, so that the kernel kills children before PID 1.
void set_children_oom_score(const char *score);

void reap_children(void);
bool start_thread(void *(*run)(void *), void *argument);
bool start_drainer(void);

#endif
