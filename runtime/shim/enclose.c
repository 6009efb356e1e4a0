/*
 * kontor-shim enclose: runs a program as root of a user namespace, in a root directory without the host's own files.
 *
 *     kontor-shim enclose --root DIRECTORY --first USER --parent PID [--netns FILE] [--resolver ADDRESS]
 *         [--cgroup FILE]… [--read PATH DIRECTORY]… [--write PATH DIRECTORY]… [--engine NAME FILE]…
 *         -- PROGRAM [ARGUMENT…]
 *
 * The program is an image builder, which runs a tenant's commands as its own children. Dockerfiles have led builders
 * and runtimes out of their roots by mounts and links (CVE-2024-1753, CVE-2025-31133). Here root is the host's user
 * USER, which owns no file and has no rights beyond its 65,536 users.
 *
 *  - Directories are idmapped mounts (mount_setattr(2)): their files have the same owners on disk for every USER.
 *  - --read and --write show the host's DIRECTORY to the program at PATH.
 *  - --engine mounts the host's program FILE as /engines/NAME. The program uses the libraries of /usr.
 *  - The network namespace FILE is entered before the user namespace, so no process inside has rights over it. Without
 *    --netns the program has only a loopback interface.
 *  - Each --cgroup FILE is a `cgroup.procs` that the program joins. The program sees its own group, read-only.
 *  - The program is killed when this process or the process PID ends in any way.
 *
 * The exit code is 0 if the program exited with 0, 70 if the program was never started, else 1.
 */
#define _GNU_SOURCE
#include "enclose.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/keyctl.h>
#include <linux/mount.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "filter.h"
#include "mounts.h"

enum { USERS = 65536, MAX_DIRECTORIES = 8, MAX_ENGINES = 4, MAX_CGROUPS = 16, NOT_STARTED = 70 };

struct directory {
    const char *at, *from;
    bool writable;
    int tree;
};

struct engine {
    const char *name, *from;
};

struct enclosure {
    const char *root, *netns, *resolver;
    unsigned long first;
    pid_t parent;
    struct directory directories[MAX_DIRECTORIES];
    int directory_count;
    struct engine engines[MAX_ENGINES];
    int engine_count;
    const char *cgroups[MAX_CGROUPS];
    int cgroup_count;
    char **program;
};

/* Limits on namespaces, in addition to those of every user namespace (namespaces(7)). A build step makes mount, pid,
 * IPC and UTS namespaces. */
static const char *const sysctls[][2] = {
    {"max_net_namespaces", "0"},
    {"max_cgroup_namespaces", "0"},
    {"max_time_namespaces", "0"},
    {"max_fanotify_groups", "0"},
};

static const char *const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
/* Debian's directories of trusted certificates. Links lead from the first directory to the second. */
static const char *const certificates[] = {"etc/ssl/certs", "etc/ca-certificates"};
static const char *const links[] = {"bin", "sbin", "lib", "lib32", "lib64", "libx32"};
static const char *const empty[] = {"dev/shm", "dev/pts", "dev/mqueue", "proc", "sys", "root", "run", "tmp", "var/tmp"};

static unsigned long owner;
static int failure_fd = -1;

static void own(const char *path) {
    if (lchown(path, (uid_t)owner, (gid_t)owner)) fail("chown", path);
}

/* Makes the directory and its parents. */
static void make_path(const char *path) {
    char text[256];
    if (snprintf(text, sizeof text, "%s/", path) >= (int)sizeof text) {
        errno = ENAMETOOLONG;
        fail("mkdir", path);
    }
    for (char *end = strchr(text, '/'); end; end = strchr(end + 1, '/')) {
        *end = 0;
        if (access(text, F_OK)) {
            make_directory(text);
            own(text);
        }
        *end = '/';
    }
}

static void make_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) fail("create", path);
    close(fd);
    write_file(path, text);
    own(path);
}

static void make_link(const char *target, const char *path) {
    if (symlink(target, path)) fail("symlink", path);
    own(path);
}

/* Bind-mounts the host's file or directory `from` at `path`. The owner of `from` has no id in the user namespace. */
static void share_at(const char *path, const char *from, unsigned long attributes) {
    int tree = clone_mount(from, 0);
    set_attributes(tree, attributes, -1, from);
    attach(tree, path);
    close(tree);
}

/* Bind-mounts the host's `path` at the same path in the enclosure. */
static void share(const char *path, unsigned long attributes) {
    char from[64];
    snprintf(from, sizeof from, "/%s", path);
    share_at(path, from, attributes);
}

static void mount_tmpfs(const char *at, unsigned long flags) {
    char options[96];
    snprintf(options, sizeof options, "mode=755,size=64m,uid=%lu,gid=%lu", owner, owner);
    if (mount("none", at, "tmpfs", flags, options)) fail("mount tmpfs", at);
}

static void fill_root(const struct enclosure *enclosure) {
    const unsigned long attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    char path[64], target[64];
    make_path("usr");
    share("usr", attributes);
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        snprintf(path, sizeof path, "/%s", links[i]);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        make_link(target, links[i]);
    }
    for (int i = 0; i < enclosure->engine_count; i++) {
        make_path("engines");
        snprintf(path, sizeof path, "engines/%s", enclosure->engines[i].name);
        make_file(path, "");
        share_at(path, enclosure->engines[i].from, attributes);
    }
    for (size_t i = 0; i < sizeof certificates / sizeof *certificates; i++) {
        make_path(certificates[i]);
        share(certificates[i], attributes);
    }
    make_file("etc/ld.so.cache", "");
    share("etc/ld.so.cache", attributes);
    make_file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
    make_file("etc/group", "root:x:0:\n");
    make_file("etc/hosts", "127.0.0.1 localhost\n");
    snprintf(path, sizeof path, "nameserver %s\n", enclosure->resolver ? enclosure->resolver : "");
    make_file("etc/resolv.conf", enclosure->resolver ? path : "");

    make_path("dev");
    mount_tmpfs("dev", MS_NOSUID);
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) make_path(empty[i]);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        snprintf(path, sizeof path, "dev/%s", devices[i]);
        make_file(path, "");
        share(path, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    }
    make_link("/proc/self/fd", "dev/fd");
}

static void mount_kernel_views(void) {
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    const char *cgroups = "sys/fs/cgroup";
    if (mount("proc", "proc", "proc", flags, NULL)) fail("mount", "proc");
    if (mount("sysfs", "sys", "sysfs", flags | MS_RDONLY, NULL)) fail("mount", "sysfs");
    /* runc expects a cgroup2 mount here. A host with cgroup v1 alone has no cgroup2 mount. */
    if (mount("cgroup2", cgroups, "cgroup2", flags, NULL)) fail("mount", "cgroup2");
    if (mount(NULL, cgroups, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL)) fail("remount", "cgroup2");
}

static void enter_network(const char *netns) {
    if (netns) {
        int fd = open(netns, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || setns(fd, CLONE_NEWNET)) fail("enter", netns);
        close(fd);
        return;
    }
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWNET)) fail("unshare", "the network");
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &loopback)) fail("start", "the loopback interface");
    close(fd);
}

/* Runs as root of the host, so that the user namespace never sees the old root. */
static void enter_root(struct enclosure *enclosure, int userns) {
    for (int i = 0; i < enclosure->directory_count; i++) {
        struct directory *each = &enclosure->directories[i];
        each->tree = clone_directory(each->from);
        /* nosuid and nodev would be locked, and runc 1.1 remounts bind mounts without them. Device nodes do
         * not work anyway. */
        set_attributes(each->tree, each->writable ? 0 : MOUNT_ATTR_RDONLY, userns, each->from);
    }
    enter_network(enclosure->netns);
    if (unshare(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWIPC | CLONE_NEWUTS)) fail("unshare", "namespaces");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) fail("unshare", "mounts");
    mount_tmpfs(enclosure->root, MS_NOSUID | MS_NODEV);
    if (chdir(enclosure->root)) fail("enter", enclosure->root);
    fill_root(enclosure);
    mount_kernel_views();
    for (int i = 0; i < enclosure->directory_count; i++) {
        const struct directory *each = &enclosure->directories[i];
        make_path(each->at + 1);
        attach(each->tree, each->at + 1);
        close(each->tree);
    }
    if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/")) fail("enter", "the new root");
}

/* Makes the kernel kill this process when the parent ends. If the parent ended before prctl took effect, its end of
 * the pipe is closed. */
static void end_with_parent(int parent) {
    struct pollfd poller = {.fd = parent};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) fail("set", "the parent-death signal");
    if (poll(&poller, 1, 0) != 0) _exit(1);
}

static void enter_users(int userns, int parent) {
    if (setns(userns, CLONE_NEWUSER)) fail("enter", "the user namespace");
    if (setgroups(0, NULL) || setresgid(0, 0, 0) || setresuid(0, 0, 0)) fail("become", "root of the user namespace");
    /* Mounts are locked in a mount namespace that another user namespace owns (mount_namespaces(7)). */
    if (unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS)) fail("unshare", "namespaces of the user namespace");
    /* The change of user cleared the parent-death signal (prctl(2)). */
    end_with_parent(parent);
    for (size_t i = 0; i < sizeof sysctls / sizeof *sysctls; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/sys/user/%s", sysctls[i][0]);
        /* Older kernels lack some of these files. */
        if (access(path, F_OK) == 0) write_file(path, sysctls[i][1]);
    }
    /* A kernel without key support has no keyring to leave. */
    if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS) fail("join", "a session keyring");
    if (sethostname("builder", strlen("builder"))) fail("set", "the host name");
}

static void report_failure(void) {
    if (write(failure_fd, "", 1) < 0) return;
}

static _Noreturn void become_program(struct enclosure *enclosure, int userns, int parent) {
    if (atexit(report_failure)) _exit(1);
    end_with_parent(parent);
    umask(022);
    for (int i = 0; i < enclosure->cgroup_count; i++) write_file(enclosure->cgroups[i], "0");
    enter_root(enclosure, userns);
    enter_users(userns, parent);
    install_filter();
    execvp(enclosure->program[0], enclosure->program);
    fail("start", enclosure->program[0]);
}

static int enclose(struct enclosure *enclosure) {
    int alive[2], failure[2], status;
    char byte;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) fail("set", "the parent-death signal");
    if (getppid() != enclosure->parent) return 1;
    if (syscall(SYS_close_range, 3U, ~0U, 0U)) fail("close", "inherited descriptors");
    owner = enclosure->first;
    int userns = make_userns(enclosure->first, USERS);
    if (pipe2(alive, O_CLOEXEC) || pipe2(failure, O_CLOEXEC)) fail("pipe", "");
    /* The procfs belongs to the host's user namespace: the program can read it, but not write to it. */
    if (unshare(CLONE_NEWPID)) fail("unshare", "processes");
    pid_t program = fork();
    if (program < 0) fail("fork", "");
    if (program == 0) {
        close(alive[1]);
        close(failure[0]);
        failure_fd = failure[1];
        become_program(enclosure, userns, alive[0]);
    }
    close(alive[0]);
    close(failure[1]);
    if (waitpid(program, &status, 0) < 0) fail("wait for", enclosure->program[0]);
    if (read(failure[0], &byte, 1) == 1) return NOT_STARTED;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

/* Returns the number of words that the option takes, or 0 for an unknown option and for an option beyond its limit. */
static int parse_option(struct enclosure *enclosure, char **words) {
    const char *name = words[0], *value = words[1];
    bool writable = !strcmp(name, "--write");
    if (!strcmp(name, "--root")) enclosure->root = value;
    else if (!strcmp(name, "--netns")) enclosure->netns = value;
    else if (!strcmp(name, "--resolver")) enclosure->resolver = value;
    else if (!strcmp(name, "--first")) enclosure->first = strtoul(value, NULL, 10);
    else if (!strcmp(name, "--parent")) enclosure->parent = (pid_t)strtol(value, NULL, 10);
    else if (!strcmp(name, "--cgroup") && enclosure->cgroup_count < MAX_CGROUPS)
        enclosure->cgroups[enclosure->cgroup_count++] = value;
    else if (!strcmp(name, "--engine") && words[2] && enclosure->engine_count < MAX_ENGINES) {
        if (strchr(value, '/') || strlen(value) > 32 || words[2][0] != '/') return 0;
        enclosure->engines[enclosure->engine_count++] = (struct engine){.name = value, .from = words[2]};
        return 3;
    } else if ((writable || !strcmp(name, "--read")) && words[2] && enclosure->directory_count < MAX_DIRECTORIES) {
        struct directory each = {.at = value, .from = words[2], .writable = writable};
        if (each.at[0] != '/') return 0;
        enclosure->directories[enclosure->directory_count++] = each;
        return 3;
    } else return 0;
    return 2;
}

int enclose_main(int count, char **words) {
    struct enclosure enclosure = {0};
    int at = 0, taken;
    for (; at + 1 < count && strcmp(words[at], "--") != 0; at += taken) {
        taken = parse_option(&enclosure, words + at);
        if (taken == 0) return -1;
    }
    if (at + 1 >= count || !enclosure.root || !enclosure.parent) return -1;
    if (enclosure.first == 0 || enclosure.first > 0xffffffffUL - USERS) return -1;
    enclosure.program = words + at + 1;
    return enclose(&enclosure);
}
