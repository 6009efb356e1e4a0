/*
 * kontor-shim keep --listen ADDRESS:PORT … -- PROGRAM [ARGUMENT…]
 *
 * Keeps a server's listening sockets open while the server is replaced. The command binds the sockets and passes them
 * as descriptors 3 and up, as systemd does (LISTEN_FDS and LISTEN_PID, sd_listen_fds(3)). The command restarts PROGRAM
 * after an unrequested exit. New connections wait in the sockets' queues meanwhile.
 *
 * - SIGTERM and SIGINT are forwarded. When the program ends, this process ends too.
 * - SIGHUP is forwarded, and the program is started again after its end: a restart.
 * - SIGUSR1 ends the program as SIGHUP does, and delays the next start while the sender lives: an upgrade changes the
 *   database meanwhile. SIGHUP during the delay starts the program at once. The delay also ends when the sender is
 *   killed.
 * - A program that exits with 0 was stopped by another command (`kontor down`), so this process ends too.
 * - A program that fails before any run of STABLE_S seconds cannot start at all, and is not retried. After a restart
 *   the program is retried, because the previous program could start.
 */
#define _GNU_SOURCE
#include "keep.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The kernel uses the smaller of QUEUE and net.core.somaxconn. */
enum { FIRST_FD = 3, MAX_SOCKETS = 8, QUEUE = 4096, STABLE_S = 10, LONGEST_WAIT_S = 10, HOLD_POLL_MS = 50 };

static int sockets[MAX_SOCKETS], count = 0;

/* Listens at an address such as `127.0.0.1:80` or `[::1]:80`. */
static int listen_at(const char *text) {
    char host[64];
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : 0;
    if (!colon || length >= sizeof host) return -1;
    bool bracketed = text[0] == '[' && length >= 2 && text[length - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(bracketed ? length - 2 : length), bracketed ? text + 1 : text);

    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    struct sockaddr *address = (struct sockaddr *)&v4;
    socklen_t size = sizeof v4;
    char *rest;
    long port = strtol(colon + 1, &rest, 10);
    if (*rest || colon[1] == 0 || port < 0 || port > 65535) return -1;
    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) v4.sin_port = htons((in_port_t)port);
    else if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
        v6.sin6_port = htons((in_port_t)port);
        address = (struct sockaddr *)&v6;
        size = sizeof v6;
    } else return -1;

    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(fd, address, size) == 0 && listen(fd, QUEUE) == 0) return fd;
    close(fd);
    return -1;
}

static _Noreturn void become(char **argv, const sigset_t *unblocked) {
    char number[16];
    /* Moves the sockets to high numbers first, because their final numbers may be in use by other sockets. */
    for (int i = 0; i < count; i++) sockets[i] = fcntl(sockets[i], F_DUPFD_CLOEXEC, FIRST_FD + MAX_SOCKETS);
    for (int i = 0; i < count; i++)
        if (dup2(sockets[i], FIRST_FD + i) < 0) _exit(126);
    snprintf(number, sizeof number, "%d", count);
    setenv("LISTEN_FDS", number, 1);
    snprintf(number, sizeof number, "%d", (int)getpid());
    setenv("LISTEN_PID", number, 1);
    sigprocmask(SIG_SETMASK, unblocked, NULL);
    execvp(argv[0], argv);
    fprintf(stderr, "kontor-shim: %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static time_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

/* Returns the program's exit code in the convention of a shell: 128 plus the number of a signal. */
static int code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/* A request made by an operator's signal. `holder` is a descriptor of the process that delays the next start, or -1. */
struct request {
    bool ending, restarting;
    int holder;
};

static void close_holder(struct request *request) {
    if (request->holder >= 0) close(request->holder);
    request->holder = -1;
}

static void note(struct request *request, const siginfo_t *info) {
    request->ending |= info->si_signo == SIGTERM || info->si_signo == SIGINT;
    request->restarting |= info->si_signo == SIGHUP || info->si_signo == SIGUSR1;
    if (info->si_signo == SIGHUP || info->si_signo == SIGUSR1) close_holder(request);
    /* Opens a descriptor of the sender at once: the program takes time to end, and another process may get the
     * sender's process id meanwhile. */
    if (info->si_signo == SIGUSR1) request->holder = (int)syscall(SYS_pidfd_open, info->si_pid, 0);
}

/* Waits before the next start of the program. Returns early after a signal. */
static void wait_for_signal(int milliseconds, const sigset_t *signals, struct request *request) {
    siginfo_t info;
    struct timespec at_most = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
    if (sigtimedwait(signals, &info, &at_most) > 0) note(request, &info);
}

/* Waits until the holder ends or an operator sends another signal. */
static void wait_for_holder(const sigset_t *signals, struct request *request) {
    while (request->holder >= 0 && !request->ending) {
        struct pollfd ended = {.fd = request->holder, .events = POLLIN};
        if (poll(&ended, 1, 0) != 0) close_holder(request);
        else wait_for_signal(HOLD_POLL_MS, signals, request);
    }
}

static int keep(char **argv) {
    sigset_t waited, operators, before;
    sigemptyset(&operators);
    for (const int *each = (const int[]){SIGTERM, SIGINT, SIGHUP, SIGUSR1, 0}; *each; each++) sigaddset(&operators, *each);
    waited = operators;
    sigaddset(&waited, SIGCHLD);
    sigprocmask(SIG_BLOCK, &waited, &before);
    bool stable = false;
    for (int failures = 0;;) {
        struct request request = {.holder = -1};
        int status = 0;
        time_t started = now();
        pid_t program = fork();
        if (program < 0) return 1;
        if (program == 0) become(argv, &before);
        while (waitpid(program, &status, WNOHANG) == 0) {
            siginfo_t info;
            int signal = sigwaitinfo(&waited, &info);
            if (signal < 0 || signal == SIGCHLD) continue;
            /* The program is draining already: a second signal would cut the drain short. */
            bool passed = signal != SIGUSR1 || !request.restarting;
            note(&request, &info);
            if (passed) kill(program, signal == SIGUSR1 ? SIGHUP : signal);
        }
        bool lived = now() - started >= STABLE_S;
        stable |= lived || request.restarting;
        if (request.ending ||
            (!request.restarting && WIFEXITED(status) && (WEXITSTATUS(status) == 0 || !stable)))
            return code_of(status);
        failures = request.restarting || lived ? 0 : failures + 1;
        fprintf(stderr, "kontor-shim: the server exited with %d; restarting it\n", code_of(status));
        int seconds = failures == 0 ? 0 : 1 << (failures < 4 ? failures - 1 : 3);
        if (failures > 0) wait_for_signal((seconds < LONGEST_WAIT_S ? seconds : LONGEST_WAIT_S) * 1000 + 100, &operators, &request);
        wait_for_holder(&operators, &request);
        if (request.ending) return code_of(status);
        if (request.restarting) failures = 0;
    }
}

int keep_main(int words, char **arguments) {
    int at = 0;
    for (; at < words && strcmp(arguments[at], "--") != 0; at += 2) {
        if (strcmp(arguments[at], "--listen") != 0 || at + 1 >= words || count == MAX_SOCKETS) return -1;
        sockets[count] = listen_at(arguments[at + 1]);
        if (sockets[count++] < 0) {
            fprintf(stderr, "kontor-shim: cannot listen at %s: %s\n", arguments[at + 1], strerror(errno));
            return 1;
        }
    }
    return at + 1 < words && count > 0 ? keep(arguments + at + 1) : -1;
}
