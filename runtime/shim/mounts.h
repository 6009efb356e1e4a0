#pragma once
#include <stdint.h>

/* Prints the failed operation, the path and the reason, and exits with 1. */
_Noreturn void fail(const char *what, const char *path);

/* Returns a detached mount of `path`. With AT_RECURSIVE the mount includes all mounts below the path. A
 * symlink as the last name of the path is not followed. */
int clone_mount(const char *path, unsigned flags);

/* Returns a detached mount of a directory below which untrusted programs may have written. A symlink anywhere
 * in its path fails with ELOOP. */
int clone_directory(const char *path);

/* Returns a detached mount of a layer. Builders write below `/./` in its path, so a symlink there fails with
 * ELOOP. The part before `/./` may have symlinks, such as a data directory on another disk. */
int clone_layer(const char *path);

/* Sets MOUNT_ATTR_… attributes. With a user namespace (otherwise -1), the mount maps the owners of its files. */
void set_attributes(int tree, uint64_t attributes, int userns, const char *path);

/* Attaches the mount to a file or directory. A path with a symlink anywhere in it fails with ELOOP. */
void attach(int tree, const char *path);

void make_directory(const char *path);
void write_file(const char *path, const char *text);

/* Makes a user namespace without processes, whose user 0 is the host's user `first`. Returns a descriptor of the
 * namespace. The owner of the namespace is that user and not root. The kernel also charges the owner for resources
 * used inside, such as inotify instances. With root as the owner, all machines would share root's limits. */
int make_userns(unsigned long first, unsigned long count);

/* Changes the working directory. A path with a symlink anywhere in it fails with ELOOP. */
void enter_directory(const char *path);
