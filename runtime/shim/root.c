/*
 * kontor-shim root: mounts a machine's root filesystem, made of layers.
 *
 *     kontor-shim root --at DIRECTORY [--map FIRST:COUNT --users FILE --disk DIRECTORY --netns FILE
 *                      [--volume DIRECTORY]] -- LAYER…
 *
 * overlayfs stacks the layers, the lowest first, read-only at DIRECTORY. With --map, the mount belongs to one
 * machine on the host's kernel, whose root is the host's user FIRST:
 *
 * - The machine's user namespace is made here, with limits, and is kept as a mount on the file of --users.
 * - No symlink is followed below `/./` in a layer's path, because builders write there.
 * - The layers are mapped (MOUNT_ATTR_IDMAP), so that many machines share files that root owns.
 * - Writes go to the disk, which belongs to the machine's users without a mapping.
 * - /sys is a sysfs of the machine's network namespace, so it shows neither interfaces of the host nor other
 *   control groups. There, every user may listen on every port and send echo requests, because no process in
 *   a user namespace has rights over a network namespace made outside.
 * - /persist is the volume, mapped, so that its files have the same owners on disk for every machine.
 *
 * The mounts are assembled in a private mount namespace, which ends with this process. The host keeps the
 * mount at DIRECTORY, with the mounts of /sys and /persist below it, and no layer. The private namespace
 * gives the layers names of a few bytes. So all of them fit in the kernel's page of mount options, and a path
 * may contain any character.
 *
 * On failure it prints the error on stderr and exits with 1; DIRECTORY has no mount then.
 */
#define _GNU_SOURCE
#include "root.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "mounts.h"

enum { MAX_LAYERS = 128 };

struct request {
    const char *at, *users, *disk, *netns, *volume;
    unsigned long first, count;
    char **layers;
    int layer_count;
};

/* A mount keeps the namespace alive while no process is in it. */
static void keep_userns(int userns, const char *path) {
    char source[64];
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) fail("create", path);
    close(file);
    snprintf(source, sizeof source, "/proc/self/fd/%d", userns);
    if (mount(source, path, NULL, MS_BIND, NULL)) fail("mount", path);
}

static void make_owned(const char *path, unsigned long owner) {
    make_directory(path);
    if (chown(path, (uid_t)owner, (gid_t)owner)) fail("chown", path);
}

/* Mounts the overlay on `root`. The working directory must be empty. */
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
        /* volatile: overlayfs skips the syncs of programs, because the disk is deleted with its machine. */
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
    write_file("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    write_file("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    make_directory("sys");
    if (mount("sysfs", "sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL)) fail("mount", "sysfs");
    attach(clone_mount("sys", 0), "root/sys");
}

static int make(const struct request *request) {
    bool own = request->count > 0;
    int layers[MAX_LAYERS], disk = -1, volume = -1;
    int userns = own ? make_userns(request->first, request->count) : -1;
    if (own) keep_userns(userns, request->users);
    int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (home < 0) fail("open", "/proc/self/ns/mnt");
    for (int i = 0; i < request->layer_count; i++) {
        layers[i] = clone_layer(request->layers[i]);
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
