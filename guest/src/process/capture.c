// kontor-guest capture: writes the root filesystem as a stream to standard output, to make an image (PROTOCOL.md,
// "Capture"). The program is a normal process of the machine, so the host does not trust its output and checks every
// bound itself.
//
// The machine's root is an overlay. The device number of a file shows its layer. Files of the upper layer
// were created or changed in this machine. Entries of the layer below are named but not read. So a capture
// costs one stat per file of the image and the bytes that are new.
#define _GNU_SOURCE
#include "capture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process.h"

enum {
  BUFFER_BYTES = 256 * 1024,
  NAME_BYTES = 255,
  TARGET_BYTES = 4096,
  // Limit of the depth of directories, because each level needs a descriptor. The host's paths end at 4096 bytes in any
  // case.
  DEPTH_LIMIT = 1024,
};

static unsigned char buffer[BUFFER_BYTES];
static size_t filled;
static dev_t upper;    // device of files that were created or changed
static dev_t overlay;  // device of every directory that is not a mount point

// Files with several names, by inode: the first name carries the content, each other name carries the file's
// number.
static struct { ino_t inode; uint32_t number; bool used; } *linked;
static size_t linked_room, linked_count;

_Noreturn static void give_up(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  _exit(1);
}

static void flush(void) {
  for (size_t sent = 0; sent < filled;) {
    ssize_t count = write(1, buffer + sent, filled - sent);
    if (count < 0 && errno != EINTR) give_up("the stream broke: %s", strerror(errno));
    if (count > 0) sent += (size_t)count;
  }
  filled = 0;
}

static void put(const void *bytes, size_t length) {
  if (filled + length > sizeof buffer) flush();
  memcpy(buffer + filled, bytes, length);
  filled += length;
}

static void put_number(uint64_t number, int bytes) {
  unsigned char text[8];
  for (int i = 0; i < bytes; i++) text[i] = (unsigned char)(number >> (8 * i));
  put(text, (size_t)bytes);
}

static void put_name(char type, const char *name) {
  size_t length = strlen(name);
  put(&type, 1);
  put_number(length, 1);
  put(name, length);
}

static void put_owner(const struct stat *info) {
  put_number(info->st_mode & 07777, 2);
  put_number(info->st_uid, 4);
  put_number(info->st_gid, 4);
  put_number((uint64_t)info->st_mtim.tv_sec, 8);
  put_number((uint64_t)info->st_mtim.tv_nsec, 4);
}

static bool find_linked(ino_t inode, uint32_t *number) {
  if (linked_count * 2 >= linked_room) {
    size_t room = linked_room ? linked_room * 2 : 1024;
    __typeof__(linked) larger = calloc(room, sizeof *linked);
    if (!larger) give_up("no memory for %zu hard links", room);
    for (size_t i = 0; i < linked_room; i++) {
      if (!linked[i].used) continue;
      size_t at = linked[i].inode % room;
      while (larger[at].used) at = (at + 1) % room;
      larger[at] = linked[i];
    }
    free(linked);
    linked = larger;
    linked_room = room;
  }
  size_t at = inode % linked_room;
  for (; linked[at].used; at = (at + 1) % linked_room) {
    if (linked[at].inode != inode) continue;
    *number = linked[at].number;
    return true;
  }
  linked[at].inode = inode;
  linked[at].number = (uint32_t)linked_count++;
  linked[at].used = true;
  return false;
}

static void put_file(int directory, const char *name) {
  struct stat info;
  int file = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0 || fstat(file, &info) || !S_ISREG(info.st_mode)) give_up("%s: %s", name, strerror(errno));
  uint32_t number;
  if (info.st_nlink > 1 && find_linked(info.st_ino, &number)) {
    put_name('H', name);
    put_number(number, 4);
    close(file);
    return;
  }
  put_name('F', name);
  put_owner(&info);
  put_number(info.st_nlink > 1, 1);
  put_number((uint64_t)info.st_size, 8);
  for (off_t left = info.st_size; left > 0;) {
    if (filled == sizeof buffer) flush();
    size_t room = sizeof buffer - filled;
    ssize_t count = read(file, buffer + filled, (off_t)room < left ? room : (size_t)left);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) give_up("%s: %s", name, count < 0 ? strerror(errno) : "the file became shorter");
    filled += (size_t)count;
    left -= count;
  }
  close(file);
}

static void put_symlink(int directory, const char *name, const struct stat *info) {
  char target[TARGET_BYTES];
  ssize_t length = readlinkat(directory, name, target, sizeof target);
  if (length < 0 || length == sizeof target) give_up("%s: %s", name, strerror(length < 0 ? errno : ENAMETOOLONG));
  put_name('L', name);
  put_owner(info);
  put_number((uint64_t)length, 2);
  put(target, (size_t)length);
}

static void put_directory(int parent, const char *name, const struct stat *info, int depth);

static void put_entries(int descriptor, int depth) {
  if (depth > DEPTH_LIMIT) give_up("directories nest deeper than %d", DEPTH_LIMIT);
  DIR *directory = fdopendir(descriptor);
  if (!directory) give_up("a directory cannot be read: %s", strerror(errno));
  for (;;) {
    errno = 0;
    struct dirent *entry = readdir(directory);
    if (!entry && errno) give_up("a directory cannot be read: %s", strerror(errno));
    if (!entry) break;
    const char *name = entry->d_name;
    struct stat info;
    if (!strcmp(name, ".") || !strcmp(name, "..") || strlen(name) > NAME_BYTES) continue;
    if (fstatat(descriptor, name, &info, AT_SYMLINK_NOFOLLOW)) give_up("%s: %s", name, strerror(errno));
    if (S_ISDIR(info.st_mode)) put_directory(descriptor, name, &info, depth);
    // The entry is unchanged, or a mount point: the image keeps its own entry.
    else if (info.st_dev != upper) put_name('=', name);
    else if (S_ISREG(info.st_mode)) put_file(descriptor, name);
    else if (S_ISLNK(info.st_mode)) put_symlink(descriptor, name, &info);
    // Sockets, pipes and devices are not part of an image.
  }
  closedir(directory);
}

static void put_directory(int parent, const char *name, const struct stat *info, int depth) {
  if (info->st_dev != overlay) {
    put_name('=', name);
    return;
  }
  int descriptor = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) give_up("%s: %s", name, strerror(errno));
  put_name('D', name);
  put_owner(info);
  put_entries(descriptor, depth + 1);
  put("U", 1);
}

// Finds the device numbers of the layers. A new file is in the upper layer, so its device number is that of all files
// there.
static void find_layers(void) {
  static const char probe[] = "/.kontor-capture";
  struct stat info;
  unlink(probe);
  int file = open(probe, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0 || fstat(file, &info)) give_up("%s: %s", probe, strerror(errno));
  upper = info.st_dev;
  close(file);
  unlink(probe);
  if (stat("/", &info)) give_up("/: %s", strerror(errno));
  overlay = info.st_dev;
}

int capture(void) {
  // A running process would change files during the capture. Stopped processes do not fork, so the kill
  // misses no process of a fork bomb.
  process_stop_all(0);
  kill(-1, SIGKILL);
  find_layers();
  int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) give_up("/: %s", strerror(errno));
  put_entries(root, 0);
  put("E", 1);
  flush();
  return 0;
}
