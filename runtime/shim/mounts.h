#pragma once
#include <stdint.h>

/* Prints what failed on what, with the reason, and exits with 1. */
_Noreturn void fail(const char *what, const char *path);

/*
 * A mount of `path` that is attached nowhere yet; with AT_RECURSIVE all that is mounted below it comes along. A symlink
 * is not followed as the last name of the path.
 */
int clone_mount(const char *path, unsigned flags);

/* The same of a directory that strangers may have written below: a symlink anywhere in its path fails with ELOOP. */
int clone_directory(const char *path);

/*
 * The same for a layer. Builders write below `/./` in its path, so a symlink there fails with ELOOP. The part before
 * `/./` may have symlinks, such as a data directory on another disk.
 */
int clone_layer(const char *path);

/* Sets MOUNT_ATTR_…; with a user namespace (else -1) the mount shows files as their owners are mapped there. */
void set_attributes(int tree, uint64_t attributes, int userns, const char *path);

/* Attaches the mount to a file or directory. A path with a symlink anywhere in it fails with ELOOP. */
void attach(int tree, const char *path);

void make_directory(const char *path);
void write_file(const char *path, const char *text);

/*
 * A user namespace without processes, whose user 0 is the host's `first`; returns its descriptor. Its owner is that user
 * and not root: the kernel counts what is used inside for the owner as well (inotify instances, for one), and root's share
 * would be everybody's.
 */
int make_userns(unsigned long first, unsigned long count);

/* Changes the working directory. A path with a symlink anywhere in it fails with ELOOP. */
void enter_directory(const char *path);
