// Files are streamed, and never kept whole in memory. Only regular files are read: opening a FIFO could block a thread
// forever, and a device could do anything. An upload goes to a temporary file that is then renamed. So a reader sees
// the old file or the new one, and an interrupted connection leaves no file.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "paths.h"
#include "services.h"

enum {
  ENTRY_LIMIT = 10000, // limit of a list; a page may have one entry more, which shows that further entries exist
  BATCH = 64 * 1024,
  DEPTH_LIMIT = 256, // maximum depth of a removed tree, because each level needs a descriptor
  REMOVE_TRIES = 16,
};

// Number of the next temporary name. PID 1 has one counter for the life of the machine.
static atomic_uint_fast64_t temporaries;

static void reply_stat(struct reply *reply, const struct stat *info) {
  reply_number(reply, F_SIZE, S_ISDIR(info->st_mode) ? 0 : (uint64_t)info->st_size);
  reply_number(reply, F_MODE, info->st_mode & 07777);
  reply_number(reply, F_MODIFIED_MS, (uint64_t)info->st_mtim.tv_sec * 1000 + (uint64_t)info->st_mtim.tv_nsec / 1000000);
  reply_number(reply, F_IS_DIR, S_ISDIR(info->st_mode));
  reply_number(reply, F_UID, info->st_uid);
  reply_number(reply, F_GID, info->st_gid);
}

// Describes a path: a symlink's target, or the symlink itself if the target is missing. Stores the link text in
// `target`.
static bool stat_with_target(int directory, const char *path, struct stat *info, char target[PATH_LIMIT + 1]) {
  target[0] = 0;
  if (fstatat(directory, path, info, AT_SYMLINK_NOFOLLOW)) return false;
  if (!S_ISLNK(info->st_mode)) return true;
  ssize_t length = readlinkat(directory, path, target, PATH_LIMIT);
  target[length > 0 ? length : 0] = 0;
  struct stat end;
  if (fstatat(directory, path, &end, 0) == 0) *info = end;
  return true;
}

static void reply_entry(struct reply *reply, const struct stat *info, const char *target) {
  reply_stat(reply, info);
  if (target[0]) reply_text(reply, F_LINK_TARGET, target);
}

static bool need_path(const struct request *request, struct failure *failure) {
  return request->has[F_PATH] || fail(failure, "guest_protocol", "path is missing");
}

// ---- reading

static int open_regular(const char *path, struct stat *info, struct failure *failure) {
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, info)) fail_errno(failure, errno, path);
  else if (S_ISDIR(info->st_mode)) fail_errno(failure, EISDIR, path);
  else if (!S_ISREG(info->st_mode)) fail(failure, "not_permitted", "%.400s is not a regular file", path);
  else return fd;
  if (fd >= 0) close(fd);
  return -1;
}

static bool send_meta(int connection, const struct stat *info) {
  struct reply reply;
  reply_begin(&reply, META);
  reply_stat(&reply, info);
  return send_reply(connection, &reply);
}

// Reads to the file's end, not to its stated size: files of /proc have size 0, and a log may grow. `wanted`
// bytes end the read earlier.
static bool send_content(int connection, int fd, uint64_t limit, uint64_t wanted, unsigned char *frame,
                         const char *path) {
  struct failure failure;
  for (uint64_t sent = 0;;) {
    if (sent == wanted) return send_empty(connection, END);
    ssize_t got = read(fd, frame + HEADER_BYTES, wanted - sent < FRAME_LIMIT ? wanted - sent : FRAME_LIMIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(&failure, errno, path), send_failure(connection, &failure);
    if (got == 0) return send_empty(connection, END);
    sent += (uint64_t)got;
    if (sent > limit) return send_error(connection, "too_large", "the file is larger than max_bytes");
    if (!send_prefixed(connection, frame, (uint32_t)got, DATA)) return false;
  }
}

void serve_read(int connection, const struct request *request) {
  struct failure failure;
  struct stat info;
  const char *path = request->text[F_PATH];
  uint64_t limit = request->has[F_MAX_BYTES] ? request->number[F_MAX_BYTES] : UINT64_MAX;
  uint64_t wanted = request->has[F_LIMIT] ? request->number[F_LIMIT] : UINT64_MAX;
  uint64_t offset = request->number[F_OFFSET];
  int fd = need_path(request, &failure) ? open_regular(path, &info, &failure) : -1;
  unsigned char *frame = fd >= 0 ? malloc(HEADER_BYTES + FRAME_LIMIT) : NULL;
  if (fd < 0) send_failure(connection, &failure);
  else if (!frame) send_error(connection, "failed", "no memory");
  else if ((uint64_t)info.st_size > limit)
    send_error(connection, "too_large", "the file is larger than max_bytes");
  else if (offset > INT64_MAX || (offset > 0 && lseek(fd, (off_t)offset, SEEK_SET) < 0))
    send_error(connection, "guest_protocol", "offset is out of range");
  else if (send_meta(connection, &info)) send_content(connection, fd, limit, wanted, frame, path);
  free(frame);
  if (fd >= 0) close(fd);
}

// ---- writing

#define TEMPORARY ".kontor-"

// Chooses a temporary name beside the target. The name records whether the target exists, because a rename
// does not show this to a watcher.
static void temporary_beside(const char *target, bool replaces, char *path, size_t size) {
  int directory = (int)(strrchr(target, '/') - target);
  snprintf(path, size, "%.*s/" TEMPORARY "%c-%d-%llu", directory, target, replaces ? 'r' : 'n', getpid(),
           (unsigned long long)atomic_fetch_add(&temporaries, 1));
}

bool is_temporary(const char *name) {
  size_t length = strlen(TEMPORARY);
  return !strncmp(name, TEMPORARY, length) && (name[length] == 'r' || name[length] == 'n') && name[length + 1] == '-';
}

bool is_replacement(const char *name) { return is_temporary(name) && name[strlen(TEMPORARY)] == 'r'; }

// Creates the file that will replace the target. Keeps the owner of an existing target.
static int create_beside(struct real_path *target, char *path, size_t size, struct failure *failure) {
  struct stat old;
  bool replaces = lstat(target->text, &old) == 0;
  if (replaces && S_ISDIR(old.st_mode)) return fail_errno(failure, EISDIR, target->text), -1;
  if (replaces && !S_ISREG(old.st_mode))
    return fail(failure, "not_permitted", "%.400s is not a regular file", target->text), -1;
  if (!make_parents(target, failure)) return -1;
  temporary_beside(target->text, replaces, path, size);
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return fail_errno(failure, errno, target->text), -1;
  if (replaces && fchown(fd, old.st_uid, old.st_gid)) errno = 0; // some mounts forbid chown
  return fd;
}

// Receives the frames of an upload. Returns false without an error code if the host disconnected, because no reply is
// sent then.
static bool receive_content(int connection, int fd, uint64_t *size, unsigned char *piece, struct failure *failure) {
  unsigned char header[HEADER_BYTES];
  for (;;) {
    if (!read_exactly(connection, header, sizeof header)) return false;
    uint32_t length = get_u32(header);
    if (header[4] == UPLOAD_END && length == 0) return true;
    if (header[4] != UPLOAD || length > FRAME_LIMIT) return fail(failure, "guest_protocol", "not an upload frame");
    if (!read_exactly(connection, piece, length)) return false;
    if (!write_exactly(fd, piece, length)) return fail_errno(failure, errno, "write");
    *size += length;
  }
}

static bool put_in_place(int fd, const char *temporary, const char *target, mode_t mode, struct failure *failure) {
  // close before the rename: some file systems report a full disk only then
  bool ok = fchmod(fd, mode) == 0;
  int error = errno;
  if (close(fd) && ok) ok = false, error = errno;
  if (ok && rename(temporary, target)) ok = false, error = errno;
  return ok || fail_errno(failure, error, target);
}

void serve_write(int connection, const struct request *request) {
  struct failure failure = {0};
  struct real_path *target = malloc(sizeof *target);
  unsigned char *piece = malloc(FRAME_LIMIT);
  char temporary[PATH_LIMIT + 64];
  uint64_t size = 0;
  mode_t mode = request->has[F_MODE] ? request->number[F_MODE] & 07777 : 0644;
  int fd = -1;
  bool ok = target && piece;
  if (!ok) fail(&failure, "failed", "no memory");
  ok = ok && need_path(request, &failure) &&
       resolve_target_below_roots(request, request->text[F_PATH], target, &failure) &&
       (fd = create_beside(target, temporary, sizeof temporary, &failure)) >= 0;
  if (ok && !receive_content(connection, fd, &size, piece, &failure)) {
    close(fd);
    ok = false;
  } else if (ok) {
    ok = put_in_place(fd, temporary, target->text, mode, &failure);
  }
  if (fd >= 0 && !ok) unlink(temporary);
  struct reply reply;
  reply_begin(&reply, DONE);
  reply_number(&reply, F_SIZE, size);
  if (ok) send_reply(connection, &reply);
  else if (failure.code) send_failure(connection, &failure);
  free(piece);
  free(target);
}

// ---- directories

void serve_stat(int connection, const struct request *request) {
  struct failure failure;
  struct stat info;
  struct reply reply;
  char target[PATH_LIMIT + 1];
  if (!need_path(request, &failure) || (!stat_with_target(AT_FDCWD, request->text[F_PATH], &info, target) &&
                                        !fail_errno(&failure, errno, request->text[F_PATH]))) {
    send_failure(connection, &failure);
    return;
  }
  reply_begin(&reply, META);
  reply_entry(&reply, &info, target);
  send_reply(connection, &reply);
}

// Entries are small, so they are sent in batches of BATCH bytes. Otherwise a large directory would cost
// thousands of writes.
struct batch {
  unsigned char bytes[BATCH];
  size_t held;
};

static bool flush_batch(int connection, struct batch *batch) {
  size_t held = batch->held;
  batch->held = 0;
  return held == 0 || write_exactly(connection, batch->bytes, held);
}

static bool add_entry(int connection, int directory, const char *name, struct batch *batch) {
  struct stat info;
  struct reply reply;
  char target[PATH_LIMIT + 1];
  // the entry was deleted since readdir
  if (!stat_with_target(directory, name, &info, target)) return true;
  reply_begin(&reply, ENTRY);
  reply_text(&reply, F_NAME, name);
  reply_entry(&reply, &info, target);
  put_u32(reply.bytes, (uint32_t)(reply.length - HEADER_BYTES));
  if (batch->held + reply.length > BATCH && !flush_batch(connection, batch)) return false;
  memcpy(batch->bytes + batch->held, reply.bytes, reply.length);
  batch->held += reply.length;
  return true;
}

static bool is_dots(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

static bool send_entries(int connection, DIR *directory, struct batch *batch) {
  size_t count = 0;
  for (struct dirent *entry; (entry = readdir(directory));) {
    if (is_dots(entry->d_name)) continue;
    if (++count > ENTRY_LIMIT) return send_error(connection, "too_large", "the directory has more than 10000 entries");
    if (!add_entry(connection, dirfd(directory), entry->d_name, batch)) return false;
  }
  return flush_batch(connection, batch) && send_empty(connection, END);
}

typedef char entry_name[256];

static int by_name(const void *one, const void *other) { return strcmp(one, other); }

// Sends the first names after a name, in byte order. Memory is bounded to two pages for any size of directory.
static bool send_page(int connection, DIR *directory, const char *after, size_t limit, struct batch *batch) {
  entry_name *names = malloc(2 * limit * sizeof *names);
  if (!names) return send_error(connection, "failed", "no memory");
  size_t count = 0;
  bool is_cut = false;
  for (struct dirent *entry; (entry = readdir(directory));) {
    const char *name = entry->d_name;
    if (is_dots(name) || (after && strcmp(name, after) <= 0)) continue;
    if (is_cut && strcmp(name, names[limit - 1]) >= 0) continue;
    snprintf(names[count++], sizeof *names, "%s", name);
    if (count < 2 * limit) continue;
    qsort(names, count, sizeof *names, by_name);
    count = limit;
    is_cut = true;
  }
  qsort(names, count, sizeof *names, by_name);
  bool ok = true;
  for (size_t i = 0; ok && i < count && i < limit; i++) ok = add_entry(connection, dirfd(directory), names[i], batch);
  free(names);
  return ok && flush_batch(connection, batch) && send_empty(connection, END);
}

void serve_list(int connection, const struct request *request) {
  struct failure failure;
  DIR *directory = NULL;
  struct batch *batch = calloc(1, sizeof *batch);
  uint64_t limit = request->number[F_LIMIT];
  if (!batch) send_error(connection, "failed", "no memory");
  else if (limit > ENTRY_LIMIT + 1) send_error(connection, "guest_protocol", "limit is larger than 10001");
  else if (!need_path(request, &failure) || (!(directory = opendir(request->text[F_PATH])) &&
                                             !fail_errno(&failure, errno, request->text[F_PATH])))
    send_failure(connection, &failure);
  else if (limit > 0)
    send_page(connection, directory, request->has[F_AFTER] ? request->text[F_AFTER] : NULL, limit, batch);
  else send_entries(connection, directory, batch);
  if (directory) closedir(directory);
  free(batch);
}

static bool is_directory(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool make_directory(const struct request *request, struct real_path *real, struct failure *failure) {
  if (!need_path(request, failure)) return false;
  bool parents = request->number[F_PARENTS];
  mode_t mode = request->has[F_MODE] ? request->number[F_MODE] & 07777 : 0755;
  if (!resolve_at_or_below_roots(request, request->text[F_PATH], real, failure)) return false;
  if (parents && !make_parents(real, failure)) return false;
  if (mkdir(real->text, mode) == 0) return true;
  return (errno == EEXIST && parents && is_directory(real->text)) || fail_errno(failure, errno, real->text);
}

// ---- move and delete

static int rename_without_replacing(const char *from, const char *to) {
  int result = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
  if (result == 0 || (errno != EINVAL && errno != ENOSYS)) return result;
  // a file system without that flag: check first, and accept the race between check and rename
  if (access(to, F_OK) == 0) return errno = EEXIST, -1;
  return rename(from, to);
}

static bool copy_content(int from, int to, unsigned char *piece, const char *path, struct failure *failure) {
  for (;;) {
    ssize_t got = read(from, piece, FRAME_LIMIT);
    if (got == 0) return true;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 || !write_exactly(to, piece, (size_t)got)) return fail_errno(failure, errno, path);
  }
}

// Moves a file between two mounts (the workspace and a volume): copies it to a temporary file, renames the copy, then
// deletes the original.
static bool move_across(const char *from, struct real_path *to, bool overwrite, struct failure *failure) {
  struct stat info;
  char temporary[PATH_LIMIT + 64];
  if (!overwrite && access(to->text, F_OK) == 0) return fail_errno(failure, EEXIST, to->text);
  int source = open_regular(from, &info, failure);
  if (source < 0) return strcmp(failure->code, "is_directory") ? false : fail_errno(failure, EXDEV, from);
  unsigned char *piece = malloc(FRAME_LIMIT);
  int target = piece ? create_beside(to, temporary, sizeof temporary, failure) : -1;
  if (!piece) fail(failure, "failed", "no memory");
  bool ok = target >= 0;
  if (ok && !copy_content(source, target, piece, to->text, failure)) {
    close(target);
    ok = false;
  } else if (ok) {
    ok = put_in_place(target, temporary, to->text, info.st_mode & 07777, failure);
  }
  if (target >= 0 && !ok) unlink(temporary);
  free(piece);
  close(source);
  return ok && (unlink(from) == 0 || fail_errno(failure, errno, from));
}

static bool move(const struct request *request, struct real_path *from, struct real_path *to,
                 struct failure *failure) {
  bool overwrite = request->number[F_OVERWRITE];
  if (!need_path(request, failure)) return false;
  if (!request->has[F_TO]) return fail(failure, "guest_protocol", "to is missing");
  if (!resolve_below_roots(request, request->text[F_PATH], from, failure) ||
      !resolve_below_roots(request, request->text[F_TO], to, failure))
    return false;
  int (*put)(const char *, const char *) = overwrite ? rename : rename_without_replacing;
  int result = put(from->text, to->text);
  if (result && errno == ENOENT && faccessat(AT_FDCWD, from->text, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
    if (!make_parents(to, failure)) return false;
    result = put(from->text, to->text);
  }
  if (result == 0) return true;
  if (errno == EXDEV) return move_across(from->text, to, overwrite, failure);
  if (errno == EINVAL) return fail(failure, "invalid_path", "a directory cannot be moved into itself");
  return fail_errno(failure, errno, errno == ENOENT && access(from->text, F_OK) ? from->text : to->text);
}

static bool remove_tree(int parent, const char *name, const char *path, int depth, struct failure *failure);

// Deletes the entries of a directory in one pass. Uses descriptors, not paths, so a planted symlink is not
// followed.
static bool remove_entries(DIR *directory, const char *path, int depth, struct failure *failure) {
  rewinddir(directory);
  for (struct dirent *entry; (entry = readdir(directory));) {
    if (is_dots(entry->d_name) || unlinkat(dirfd(directory), entry->d_name, 0) == 0 || errno == ENOENT) continue;
    if (errno != EISDIR && errno != EPERM) return fail_errno(failure, errno, path);
    if (!remove_tree(dirfd(directory), entry->d_name, path, depth + 1, failure)) return false;
  }
  return true;
}

static bool remove_tree(int parent, const char *name, const char *path, int depth, struct failure *failure) {
  if (depth > DEPTH_LIMIT) return fail(failure, "too_large", "%.400s is deeper than %d directories", path, DEPTH_LIMIT);
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *directory = fd < 0 ? NULL : fdopendir(fd);
  if (!directory) {
    int error = errno;
    if (fd >= 0) close(fd);
    return (error == ENOENT && depth > 0) || fail_errno(failure, error, path);
  }
  bool ok = false;
  // another pass deletes entries that were created during the first
  for (int tries = 0; !ok && tries < REMOVE_TRIES; tries++) {
    if (!remove_entries(directory, path, depth, failure)) break;
    ok = unlinkat(parent, name, AT_REMOVEDIR) == 0 || (errno == ENOENT && depth > 0);
    if (!ok) fail_errno(failure, errno, path);
    if (!ok && errno != ENOTEMPTY && errno != EEXIST) break;
  }
  closedir(directory);
  return ok;
}

static bool remove_path(const struct request *request, struct real_path *real, struct failure *failure) {
  struct stat info;
  if (!need_path(request, failure) || !resolve_below_roots(request, request->text[F_PATH], real, failure))
    return false;
  if (lstat(real->text, &info)) return fail_errno(failure, errno, real->text);
  if (!S_ISDIR(info.st_mode)) return unlink(real->text) == 0 || fail_errno(failure, errno, real->text);
  if (!request->number[F_RECURSIVE]) return fail_errno(failure, EISDIR, real->text);
  return remove_tree(AT_FDCWD, real->text, real->text, 0, failure);
}

void serve_change(int connection, const struct request *request) {
  struct failure failure;
  struct real_path *paths = malloc(2 * sizeof *paths);
  bool ok = false;
  if (!paths) fail(&failure, "failed", "no memory");
  else if (request->type == MKDIR) ok = make_directory(request, &paths[0], &failure);
  else if (request->type == MOVE) ok = move(request, &paths[0], &paths[1], &failure);
  else ok = remove_path(request, &paths[0], &failure);
  if (ok) send_empty(connection, OK);
  else send_failure(connection, &failure);
  free(paths);
}
