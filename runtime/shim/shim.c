/*
 * kontor-shim: the parent of one machine's processes. Other commands mount a root filesystem (root.c), keep
 * the server's listening sockets (keep.c), enclose an image builder (enclose.c) and mark overlay layers
 * (opaque.c).
 *
 *     kontor-shim run --status-fd N [--mask-proc-sys-net] -- PROGRAM [ARGUMENT…]
 *
 * The shim starts PROGRAM (runsc, runc) with /dev/null as stdin, stdout and stderr. The shim writes the program's end
 * as one line to the status fd, closes the fd, and stays until the last descendant has ended. The shim leads its own
 * session, so machines survive the kill of a server.
 *
 * - The shim is the child subreaper (prctl(2)), so it inherits the sandbox and the gofer of runsc, or PID 1 of runc,
 *   and reaps them at once. The host's PID 1 can leave them as zombies for seconds, and every wait for a machine's end
 *   would be longer.
 * - stdio is /dev/null because runsc and runc pass their own to PID 1 of the machine. Otherwise a guest could
 *   fill a file of the host.
 * - --mask-proc-sys-net: runsc takes a network namespace with /proc/sys/net/core/rmem_default for the host's,
 *   and refuses to start. Kernels since 6.17 show this file in every namespace. So PROGRAM runs in its own
 *   mount namespace with an empty directory over /proc/sys/net. The shim stays outside: otherwise it would
 *   keep the disks of all other machines mounted for its whole life.
 *
 * Status line: "exit CODE", "signal NUMBER" or "error STEP ERRNO" (PROGRAM was never started).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "enclose.h"
#include "keep.h"
#include "opaque.h"
#include "root.h"

/* Error that the child reports if it fails before PROGRAM starts. */
struct failure {
    char what[24];
    int error;
};

static void write_status(int fd, const char *line) {
    /* The error is ignored: the reader may be gone, because the server can be killed while a machine starts. */
    if (write(fd, line, strlen(line)) < 0) return;
}

static _Noreturn void give_up(int fd, const char *what) {
    struct failure failure = {.error = errno};
    snprintf(failure.what, sizeof failure.what, "%s", what);
    if (write(fd, &failure, sizeof failure) < 0) _exit(126);
    _exit(127);
}

static _Noreturn void become_program(int failure_fd, int mask_proc_sys_net, char **argv) {
    if (mask_proc_sys_net) {
        if (unshare(CLONE_NEWNS) != 0) give_up(failure_fd, "unshare");
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) give_up(failure_fd, "make-private");
        if (mount("none", "/proc/sys/net", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k") != 0)
            give_up(failure_fd, "mask");
    }
    signal(SIGPIPE, SIG_DFL);
    execvp(argv[0], argv);
    give_up(failure_fd, "exec");
}

static void report(int status_fd, int failure_fd, int status) {
    struct failure failure;
    char line[80];
    if (read(failure_fd, &failure, sizeof failure) == (ssize_t)sizeof failure)
        snprintf(line, sizeof line, "error %s %d\n", failure.what, failure.error);
    else if (WIFSIGNALED(status))
        snprintf(line, sizeof line, "signal %d\n", WTERMSIG(status));
    else
        snprintf(line, sizeof line, "exit %d\n", WEXITSTATUS(status));
    write_status(status_fd, line);
}

static int usage(void) {
    fputs("usage: kontor-shim run --status-fd N [--mask-proc-sys-net] -- PROGRAM [ARGUMENT...]\n"
          "       kontor-shim root --at DIRECTORY [--map FIRST:COUNT --users FILE --disk DIRECTORY"
          " --netns FILE [--volume DIRECTORY]] -- LAYER...\n"
          "       kontor-shim enclose --root DIRECTORY --first USER --parent PID [--netns FILE] [--resolver ADDRESS]"
          " [--cgroup FILE]... [--read PATH DIRECTORY]... [--write PATH DIRECTORY]... -- PROGRAM [ARGUMENT...]\n"
          "       kontor-shim opaque LAYER...\n"
          "       kontor-shim keep --listen ADDRESS:PORT... -- PROGRAM [ARGUMENT...]\n",
          stderr);
    return 64;
}

static const struct {
    const char *name;
    int (*run)(int count, char **arguments);
} commands[] = {{"root", root_main}, {"keep", keep_main}, {"enclose", enclose_main}, {"opaque", opaque_main}};

int main(int argc, char **argv) {
    int status_fd = -1, mask = 0, at = 2;
    for (size_t i = 0; argc >= 2 && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        int code = commands[i].run(argc - 2, argv + 2);
        return code < 0 ? usage() : code;
    }
    if (argc < 2 || strcmp(argv[1], "run") != 0) return usage();
    for (; at < argc && strcmp(argv[at], "--") != 0; at++) {
        if (strcmp(argv[at], "--mask-proc-sys-net") == 0) mask = 1;
        else if (strcmp(argv[at], "--status-fd") == 0 && at + 1 < argc) status_fd = atoi(argv[++at]);
        else return usage();
    }
    if (at + 1 >= argc || status_fd < 3) return usage();

    setsid(); /* fails only if this process already leads a session */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return 1;
    /* The working directory is "/", so that a machine keeps no directory of the server busy. */
    if (chdir("/") != 0) return 1;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0) return 1;
    fcntl(status_fd, F_SETFD, FD_CLOEXEC);

    int failure[2];
    if (pipe2(failure, O_CLOEXEC) != 0) return 1;
    pid_t program = fork();
    if (program < 0) {
        write_status(status_fd, "error fork 0\n");
        return 1;
    }
    if (program == 0) become_program(failure[1], mask, argv + at + 1);
    close(failure[1]);

    for (;;) {
        int status;
        pid_t ended = waitpid(-1, &status, 0);
        if (ended == program) {
            report(status_fd, failure[0], status);
            close(failure[0]);
            close(status_fd);
        }
        if (ended < 0 && errno != EINTR) return 0;
    }
}
