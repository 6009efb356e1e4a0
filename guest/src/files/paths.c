// The check of roots protects the owner from mistakes; it is not a security boundary. A process that can swap a symlink
// between the check and the change already runs inside the machine, and may write anywhere in it. The boundary is the
// machine.
#define _GNU_SOURCE
#include "paths.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINK_LIMIT = 40 }; // largest number of symlinks in a path, as in the kernel

static void cut_last(char *path) {
  char *slash = strrchr(path, '/');
  if (slash) *slash = 0;
}

// Resolves a path like realpath, but accepts components that do not exist, and can leave the last component unresolved.
static bool walk(const char *rest, bool follow_last, struct real_path *real, struct failure *failure) {
  // `rest` is the caller's path up to the first link, and from then on points into `pending`.
  char *text = real->text, link[PATH_LIMIT + 1], pending[PATH_LIMIT + 1];
  int links = 0;
  bool missing = false, is_directory = true;
  text[0] = 0;
  real->existing = 0;
  while (*(rest += strspn(rest, "/"))) {
    size_t length = strcspn(rest, "/"), at = strlen(text);
    bool last = rest[length + strspn(rest + length, "/")] == 0;
    if (!is_directory) return fail_errno(failure, ENOTDIR, text);
    if (length > NAME_MAX) return fail(failure, "invalid_path", "a name is longer than %d bytes", NAME_MAX);
    if (!strncmp(rest, "..", length) && length == 2) {
      if (missing) return fail_errno(failure, ENOENT, text);
      cut_last(text);
      rest += length;
      continue;
    }
    if (length == 1 && *rest == '.') {
      rest += length;
      continue;
    }
    if (at + 1 + length > PATH_LIMIT) return fail_errno(failure, ENAMETOOLONG, "path");
    text[at] = '/';
    memcpy(text + at + 1, rest, length);
    text[at + 1 + length] = 0;
    rest += length;
    struct stat info;
    if (missing) continue;
    if (lstat(text, &info)) {
      if (errno != ENOENT) return fail_errno(failure, errno, text);
      missing = true;
      real->existing = at;
      continue;
    }
    if (!S_ISLNK(info.st_mode) || (last && !follow_last)) {
      is_directory = S_ISDIR(info.st_mode);
      continue;
    }
    ssize_t target = readlink(text, link, PATH_LIMIT);
    if (target < 0 || ++links > LINK_LIMIT) return fail_errno(failure, target < 0 ? errno : ELOOP, text);
    // No trailing slash: the last component may be a file.
    size_t left = last ? 0 : strlen(rest);
    if ((size_t)target + left > PATH_LIMIT) return fail_errno(failure, ENAMETOOLONG, "path");
    memmove(pending + target, rest, left);
    memcpy(pending, link, (size_t)target);
    pending[(size_t)target + left] = 0;
    rest = pending;
    if (pending[0] == '/') text[0] = 0;
    else text[at] = 0;
  }
  if (!missing) real->existing = strlen(text);
  return true;
}

static bool lies_below(const char *path, const char *root, bool or_at) {
  size_t length = strlen(root);
  return !strncmp(path, root, length) && (path[length] == '/' || (or_at && path[length] == 0));
}

static bool resolve(const struct request *request, const char *path, bool follow_last, bool or_at,
                    struct real_path *real, struct failure *failure) {
  if (!walk(path, follow_last, real, failure)) return false;
  struct real_path *root = malloc(sizeof *root);
  struct failure unused;
  bool below = false;
  for (size_t i = 0; root && i < request->root_count && !below; i++)
    below = walk(request->roots[i], true, root, &unused) && lies_below(real->text, root->text, or_at);
  free(root);
  return below || fail(failure, "not_permitted", "%.400s is outside the writable directories", path);
}

bool resolve_below_roots(const struct request *request, const char *path, struct real_path *real,
                         struct failure *failure) {
  return resolve(request, path, false, false, real, failure);
}

bool resolve_target_below_roots(const struct request *request, const char *path, struct real_path *real,
                                struct failure *failure) {
  return resolve(request, path, true, false, real, failure);
}

bool resolve_at_or_below_roots(const struct request *request, const char *path, struct real_path *real,
                               struct failure *failure) {
  return resolve(request, path, true, true, real, failure);
}

bool make_parents(struct real_path *real, struct failure *failure) {
  char *last = strrchr(real->text, '/');
  for (char *at = real->text + real->existing; at < last;) {
    char *end = strchr(at + 1, '/');
    *end = 0;
    int failed = mkdir(real->text, 0755) && errno != EEXIST ? errno : 0;
    if (failed) fail_errno(failure, failed, real->text);
    *end = '/';
    if (failed) return false;
    at = end;
  }
  return true;
}
