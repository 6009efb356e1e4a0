// paths: compares the guest's path resolution with the kernel's over random link farms, under the sanitizers. The
// kernel opens each path, and the opened entry must be the one that paths.c returns. A path that the kernel refuses
// must be refused. The sequence is fixed, so that a failure is reproducible.
#define _GNU_SOURCE
#include "paths.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FARMS = 1000, ENTRIES = 16, PATHS = 40, PARTS = 5, TEXT = 2 * PATH_MAX };

static uint64_t state = 0x9e3779b97f4a7c15ULL;
static char base[PATH_MAX]; // directory of the link farm, in a path without symlinks
static int compared, created, refused;

static uint32_t random_below(uint32_t limit) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (uint32_t)(state >> 33) % limit;
}

static void give_up(const char *what) {
  perror(what);
  exit(1);
}

// Chooses names from a small alphabet, so that paths and links meet, and some longer names, so that targets
// differ in length.
static void random_parts(char *path, size_t size) {
  static const char *const NAMES[] = {"a", "b", "c", "d", "releases", "a-longer-name", "..", "..", "."};
  for (uint32_t parts = 1 + random_below(PARTS); parts > 0; parts--) {
    uint32_t limit = parts == 1 ? 6 : 9; // the last name is never `.` or `..`, because such names cannot be created
    size_t used = strlen(path);
    snprintf(path + used, size - used, "%s%s%s", used > 0 && path[used - 1] != '/' ? "/" : "",
             random_below(8) ? "" : "./", NAMES[random_below(limit)]);
  }
}

static void random_path(char *path, size_t size) {
  snprintf(path, size, "%s/", base);
  random_parts(path, size);
}

// Makes a random link farm. Skips entries that cannot be created at their random path (the name exists, or a loop is in
// the path).
static void make_farm(void) {
  if (mkdir(base, 0755)) give_up(base);
  for (int i = 0; i < ENTRIES; i++) {
    char path[TEXT], target[TEXT] = "";
    snprintf(path, sizeof path, "%s/", base);
    random_parts(path, sizeof path);
    uint32_t kind = random_below(8);
    if (strncmp(path, base, strlen(base)) || strstr(path, "..")) continue;
    if (kind == 0) close(open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
    else if (kind < 4) mkdir(path, 0755);
    else {
      if (random_below(3) == 0) snprintf(target, sizeof target, "%s/", base);
      random_parts(target, sizeof target);
      if (symlink(target, path)) errno = 0;
    }
  }
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *at) {
  (void)info, (void)kind, (void)at;
  return remove(path);
}

static void remove_farm(void) {
  if (nftw(base, remove_entry, 16, FTW_DEPTH | FTW_PHYS)) give_up(base);
}

// Stores in `real` the path of the entry that the kernel opens. The path is empty if the kernel refuses, with errno.
static void open_by_kernel(const char *path, int flags, char *real, size_t size) {
  char name[64];
  real[0] = 0;
  int fd = open(path, flags | O_CLOEXEC, 0644);
  if (fd < 0) return;
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(name, real, size - 1);
  if (length < 0) give_up(name);
  real[length] = 0;
  close(fd);
}

static void expect_same(const char *path, bool follows, const char *kernel, const char *guest) {
  compared++;
  if (!strcmp(kernel, guest)) return;
  fprintf(stderr, "%s (%s)\n  kernel: %s\n  guest:  %s\n", path, follows ? "followed" : "the entry itself", kernel, guest);
  exit(1);
}

static bool lies_in_farm(const char *path) {
  size_t length = strlen(base);
  return !strncmp(path, base, length) && path[length] == '/';
}

static void compare(const char *path, bool follows) {
  struct real_path real, below;
  struct failure failure = {0};
  struct request everywhere = {.roots = {(char[]){"/"}}, .root_count = 1}, farm = {.roots = {base}, .root_count = 1};
  char kernel[TEXT];
  int no_follow = follows ? 0 : O_NOFOLLOW;
  bool (*resolve)(const struct request *, const char *, struct real_path *, struct failure *) =
      follows ? resolve_target_below_roots : resolve_below_roots;
  bool ok = resolve(&everywhere, path, &real, &failure);
  open_by_kernel(path, O_PATH | no_follow, kernel, sizeof kernel);
  int error = errno;
  if (resolve(&farm, path, &below, &failure) != (ok && lies_in_farm(real.text))) {
    fprintf(stderr, "%s: the root rule is applied to another path than %s\n", path, real.text);
    exit(1);
  }
  if (kernel[0]) return expect_same(path, follows, kernel, ok ? real.text : failure.message);
  // The kernel refuses a path with missing parents; the guest returns the path of the new entry, or refuses too.
  refused++;
  if (!ok) return;
  if (error != ENOENT) expect_same(path, follows, strerror(error), real.text);
  if (!lies_in_farm(real.text)) return;
  if (real.existing >= strlen(real.text)) expect_same(path, follows, "nothing", real.text);
  if (!make_parents(&real, &failure)) return;
  open_by_kernel(path, O_CREAT | O_WRONLY | no_follow, kernel, sizeof kernel);
  expect_same(path, follows, kernel, real.text);
  created++;
}

int main(void) {
  // The farm is in memory, because tens of thousands of links are created and deleted.
  char directory[] = "/dev/shm/kontor-paths-XXXXXX", path[TEXT];
  if (!mkdtemp(directory) || !realpath(directory, base)) give_up(directory);
  // The directory is deep enough that few paths of the farm leave it.
  strcat(base, "/x");
  if (mkdir(base, 0755)) give_up(base);
  strcat(base, "/farm");
  for (int i = 0; i < FARMS; i++) {
    make_farm();
    for (int j = 0; j < PATHS; j++) {
      random_path(path, sizeof path);
      compare(path, random_below(2));
    }
    remove_farm();
  }
  *strrchr(base, '/') = 0;
  if (rmdir(base) || rmdir(directory)) give_up(directory);
  printf("%d paths lead where the kernel leads, %d of them created, %d refused or new\n", compared, created, refused);
  return compared > FARMS && created > FARMS ? 0 : 1;
}
