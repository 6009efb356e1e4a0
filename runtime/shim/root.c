/*
 * kontor-shim root: a machine's root filesystem of layers, as one mount.
 *
 *     kontor-shim root --at DIRECTORY [--map FIRST:COUNT --users FILE --disk DIRECTORY --netns FILE
 *                      [--volume DIRECTORY]] -- LAYER…
 *
 * The layers, the lowest first, are stacked by overlayfs at DIRECTORY, read-only. With --map it is a machine's own on
 * the host's kernel, whose root is the host's user FIRST:
 *
 *  - its user namespace is made here, with limits, and is kept as a mount on the file of --users;
 *  - the layers are mapped (MOUNT_ATTR_IDMAP), so that many machines share files that root owns;
 *  - what it writes goes to the disk, which belongs to its users as it is;
 *  - /sys is a sysfs of its network namespace, so that it shows neither the host's interfaces nor anybody's control
 *    groups; and there every user may listen on every port and send echo requests, since nobody in a user namespace has
 *    rights over a network namespace that was made outside;
 *  - /persist is the volume, mapped, so that its files are on disk as other machines have them.
 *
 * All of it is put together in a mount namespace of our own, which goes with us: what stays on the host is the one
 * mount at DIRECTORY, with those two below it, and no layer. There the layers have names of a few bytes, so that all
 * of them fit in the kernel's page of mount options, and a path may hold any character.
 *
 * Prints what went wrong on stderr and ends with 1; nothing is mounted at DIRECTORY then.
 */
#define _GNU_SOURCE
#include "root.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* glibc of Debian 12 knows these, older ones do not. */
#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x00100000
#endif

enum { MAX_LAYERS = 128 };

struct request {
    const char *at, *users, *disk, *netns, *volume;
    unsigned long first, count;
    char **layers;
    int layer_count;
};

static _Noreturn void fail(const char *what, const char *path) {
    fprintf(stderr, "%s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

/* A mount that is attached nowhere yet; with AT_RECURSIVE all that is mounted below it comes along. */
static int clone_mount(const char *path, unsigned flags) {
    flags |= OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW;
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, path, flags);
    if (tree < 0) fail("open_tree", path);
    return tree;
}

static void set_attributes(int tree, uint64_t attributes, int userns, const char *path) {
    struct mount_attr attr = {.attr_set = attributes};
    if (userns >= 0) {
        attr.attr_set |= MOUNT_ATTR_IDMAP;
        attr.userns_fd = (uint64_t)userns;
    }
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr)) fail("mount_setattr", path);
}

/* No symlink of an image leads a mount anywhere. */
static void attach(int tree, const char *name) {
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    int at = (int)syscall(SYS_openat2, AT_FDCWD, name, &how, sizeof how);
    if (at < 0) fail("open", name);
    if (syscall(SYS_move_mount, tree, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH))
        fail("move_mount", name);
    close(at);
}

static void write_map(pid_t pid, const char *which, const struct request *request) {
    char path[64], map[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, which);
    int length = snprintf(map, sizeof map, "0 %lu %lu\n", request->first, request->count);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, map, (size_t)length) != length) fail("write", path);
    close(fd);
}

/*
 * Limits of the namespace this process is in (proc_sys_user(5)): inotify instances and watches of each of its users, and
 * no namespaces of users within. Kernels without one of them have nothing to limit.
 */
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

/*
 * A user namespace without processes. Its owner is the user FIRST and not root: the kernel counts what is used inside for
 * the owner as well (inotify instances, for one), and root's share would be everybody's.
 */
static int make_userns(const struct request *request) {
    int ready[2];
    char path[64], byte = 0;
    if (pipe2(ready, O_CLOEXEC)) fail("pipe", "");
    pid_t child = fork();
    if (child < 0) fail("fork", "");
    if (child == 0) {
        bool made = !seteuid((uid_t)request->first) && !unshare(CLONE_NEWUSER) && limit_users();
        /* After the change of user, which clears it. */
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
    write_map(child, "gid_map", request);
    write_map(child, "uid_map", request);
    snprintf(path, sizeof path, "/proc/%d/ns/user", child);
    int userns = open(path, O_RDONLY | O_CLOEXEC);
    if (userns < 0) fail("open", path);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return userns;
}

/* A mount keeps it while no process is in it. */
static void keep_userns(int userns, const char *path) {
    char source[64];
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) fail("create", path);
    close(file);
    snprintf(source, sizeof source, "/proc/self/fd/%d", userns);
    if (mount(source, path, NULL, MS_BIND, NULL)) fail("mount", path);
}

static void make_directory(const char *path) {
    if (mkdir(path, 0755)) fail("mkdir", path);
}

static void make_owned(const char *path, unsigned long owner) {
    make_directory(path);
    if (chown(path, (uid_t)owner, (gid_t)owner)) fail("chown", path);
}

static void write_sysctl(const char *path, const char *value) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, value, strlen(value)) < 0) fail("write", path);
    close(fd);
}

/* In an empty working directory: mounts the overlay on `root`. */
static void stack(const struct request *request, const int *layers, int disk) {
    char options[MAX_LAYERS * 5 + 128], name[16];
    size_t at = (size_t)sprintf(options, "lowerdir=");
    for (int i = request->layer_count - 1; i >= 0; i--) {
        snprintf(name, sizeof name, "%d", i);
        make_directory(name);
        attach(layers[i], name);
        at += (size_t)sprintf(options + at, "%s%s", name, i > 0 ? ":" : "");
    }
    unsigned long flags = MS_NODEV | MS_NOSUID;
    if (disk >= 0) {
        make_directory("d");
        attach(disk, "d");
        make_owned("d/upper", request->first);
        make_owned("d/work", request->first);
        /* Volatile: what a program syncs need not reach a disk that ends with its machine. */
        sprintf(options + at, ",upperdir=d/upper,workdir=d/work,volatile");
    } else {
        flags |= MS_RDONLY;
    }
    make_directory("root");
    if (mount("overlay", "root", "overlay", flags, options)) fail("mount overlay", options);
}

static void mount_sys(const char *netns) {
    int fd = open(netns, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) fail("enter", netns);
    close(fd);
    write_sysctl("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    write_sysctl("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    make_directory("sys");
    if (mount("sysfs", "sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL)) fail("mount", "sysfs");
    attach(clone_mount("sys", 0), "root/sys");
}

static int make(const struct request *request) {
    bool own = request->count > 0;
    int layers[MAX_LAYERS], disk = -1, volume = -1;
    int userns = own ? make_userns(request) : -1;
    if (own) keep_userns(userns, request->users);
    int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (home < 0) fail("open", "/proc/self/ns/mnt");
    for (int i = 0; i < request->layer_count; i++) {
        layers[i] = clone_mount(request->layers[i], 0);
        set_attributes(layers[i], MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, userns, request->layers[i]);
    }
    if (own) disk = clone_mount(request->disk, 0);
    if (request->volume) {
        volume = clone_mount(request->volume, 0);
        set_attributes(volume, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, userns, request->volume);
    }

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) fail("unshare", "mounts");
    if (mount("none", request->at, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=700")) fail("mount tmpfs", request->at);
    if (chdir(request->at)) fail("enter", request->at);
    stack(request, layers, disk);
    if (own) mount_sys(request->netns);
    if (volume >= 0) attach(volume, "root/persist");

    int root = clone_mount("root", AT_RECURSIVE);
    if (setns(home, CLONE_NEWNS)) fail("return to", "the host's mounts");
    attach(root, request->at);
    return 0;
}

static bool parse_map(const char *text, struct request *request) {
    char *end;
    request->first = strtoul(text, &end, 10);
    if (end == text || *end != ':') return false;
    request->count = strtoul(end + 1, &end, 10);
    return *end == 0 && request->first > 0 && request->count > 0;
}

int root_main(int argc, char **argv) {
    struct request request = {0};
    int at = 0;
    for (; at + 1 < argc && strcmp(argv[at], "--") != 0; at += 2) {
        const char *value = argv[at + 1];
        if (!strcmp(argv[at], "--at")) request.at = value;
        else if (!strcmp(argv[at], "--users")) request.users = value;
        else if (!strcmp(argv[at], "--disk")) request.disk = value;
        else if (!strcmp(argv[at], "--netns")) request.netns = value;
        else if (!strcmp(argv[at], "--volume")) request.volume = value;
        else if (strcmp(argv[at], "--map") != 0 || !parse_map(value, &request)) return -1;
    }
    request.layers = argv + at + 1;
    request.layer_count = argc - at - 1;
    bool own = request.count > 0;
    if (!request.at || request.layer_count < 1 || request.layer_count > MAX_LAYERS) return -1;
    if (own != (request.users != NULL)) return -1;
    if (own != (request.disk != NULL) || own != (request.netns != NULL) || (request.volume && !own)) return -1;
    return make(&request);
}
