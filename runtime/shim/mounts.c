/* Detached mounts and mapped user namespaces (open_tree(2), mount_setattr(2), user_namespaces(7)). */
#define _GNU_SOURCE
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* glibc of Debian 12 defines these constants; older versions do not. */
#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x00100000
#endif

_Noreturn void fail(const char *what, const char *path) {
    fprintf(stderr, "%s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

static int open_without_links(const char *path) {
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (fd < 0) fail("open", path);
    return fd;
}

static int clone_at(int at, const char *path, unsigned flags) {
    flags |= OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC;
    int tree = (int)syscall(SYS_open_tree, at, flags & AT_EMPTY_PATH ? "" : path, flags);
    if (tree < 0) fail("open_tree", path);
    return tree;
}

int clone_mount(const char *path, unsigned flags) {
    return clone_at(AT_FDCWD, path, flags | AT_SYMLINK_NOFOLLOW);
}

int clone_directory(const char *path) {
    int at = open_without_links(path);
    int tree = clone_at(at, path, AT_EMPTY_PATH);
    close(at);
    return tree;
}

int clone_layer(const char *path) {
    const char *mark = strstr(path, "/./");
    if (!mark) return clone_mount(path, 0);
    struct open_how how = {
        .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
        .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH,
    };
    char *trusted = strndup(path, (size_t)(mark - path + 1));
    int root = trusted ? open(trusted, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    int at = root < 0 ? -1 : (int)syscall(SYS_openat2, root, mark + 3, &how, sizeof how);
    if (at < 0) fail("open", path);
    int tree = clone_at(at, path, AT_EMPTY_PATH);
    close(at);
    close(root);
    free(trusted);
    return tree;
}

void set_attributes(int tree, uint64_t attributes, int userns, const char *path) {
    struct mount_attr attr = {.attr_set = attributes};
    if (userns >= 0) {
        attr.attr_set |= MOUNT_ATTR_IDMAP;
        attr.userns_fd = (uint64_t)userns;
    }
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr)) fail("mount_setattr", path);
}

void attach(int tree, const char *path) {
    int at = open_without_links(path);
    if (syscall(SYS_move_mount, tree, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
        fail("move_mount", path);
    close(at);
}

void enter_directory(const char *path) {
    int at = open_without_links(path);
    if (fchdir(at)) fail("enter", path);
    close(at);
}

void make_directory(const char *path) {
    if (mkdir(path, 0755)) fail("mkdir", path);
}

void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) fail("write", path);
    close(fd);
}

static void write_map(pid_t pid, const char *which, unsigned long first, unsigned long count) {
    char path[64], map[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, which);
    snprintf(map, sizeof map, "0 %lu %lu\n", first, count);
    write_file(path, map);
}

/* Sets limits of this process's user namespace (proc_sys_user(5)): inotify instances and watches for each
 * user, and no nested user namespaces. A kernel without a limit's file lacks the resource too. */
static bool limit_users(void) {
    static const char *const limits[][2] = {
        {"/proc/sys/user/max_inotify_instances", "64"},
        {"/proc/sys/user/max_inotify_watches", "65536"},
        {"/proc/sys/user/max_user_namespaces", "0"},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        int fd = open(limits[i][0], O_WRONLY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT) continue;
        if (fd < 0 || write(fd, limits[i][1], strlen(limits[i][1])) < 0) return false;
        close(fd);
    }
    return true;
}

int make_userns(unsigned long first, unsigned long count) {
    int ready[2];
    char path[64], byte = 0;
    if (pipe2(ready, O_CLOEXEC)) fail("pipe", "");
    pid_t child = fork();
    if (child < 0) fail("fork", "");
    if (child == 0) {
        /* Keeps root's capabilities when the user changes. With kernel.unprivileged_userns_clone=0, making a user
         * namespace needs them. */
        prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP);
        bool made = !seteuid((uid_t)first) && !unshare(CLONE_NEWUSER) && limit_users();
        /* The change of user clears the parent-death signal, so the signal is set afterwards. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!made || write(ready[1], &byte, 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1) {
        errno = EPERM;
        fail("unshare", "user");
    }
    close(ready[0]);
    write_map(child, "gid_map", first, count);
    write_map(child, "uid_map", first, count);
    snprintf(path, sizeof path, "/proc/%d/ns/user", child);
    int userns = open(path, O_RDONLY | O_CLOEXEC);
    if (userns < 0) fail("open", path);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return userns;
}
