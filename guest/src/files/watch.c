// WATCH: reports the changes in a directory, and below it, as they happen.
//
// inotify watches single directories. A recursive watch has one watch for each directory, and follows their
// creation, move and deletion. Entries that a new directory already holds are read when its watch is set.
// inotify's own queue has no limit inside gVisor. So it is copied at once into a bounded queue; beyond the
// bound, all waiting changes are dropped, and the reader gets `overflow`. Changes wait for a moment before
// they are sent, so that several writes to one file become one change.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paths.h"
#include "services.h"

enum {
  WATCHER_LIMIT = 16,
  DIRECTORY_LIMIT = 8192,
  QUEUE_LIMIT = 2048,
  DEPTH_LIMIT = 128,
  GATHER_MS = 10,
  READ_BYTES = 64 * 1024,
  READS_AT_ONCE = 64,
  OUT_BYTES = 64 * 1024,
  PATHS_LIMIT = 8000, // longest path of a change in bytes; a longer path would not fit in a frame
};

static const uint32_t EVENTS = IN_CREATE | IN_MODIFY | IN_CLOSE_WRITE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |
                               IN_MOVE_SELF | IN_ONLYDIR | IN_DONT_FOLLOW | IN_EXCL_UNLINK;

static atomic_int watchers;

struct directory {
  int watch;
  char *path;
};

struct change {
  const char *kind;
  char *path, *from; // previous path of an entry that moved, otherwise NULL
  bool is_dir;
};

struct watcher {
  int inotify, connection;
  bool recursive, over, lost; // `over`: the watched directory is gone; `lost`: the next frame is overflow
  int root;                   // watch of the requested directory
  struct directory *directories; // sorted by watch, because inotify numbers them in ascending order
  size_t directory_count, directory_room;
  struct change queue[QUEUE_LIMIT];
  size_t queued;
  // first half of a move, until its second half arrives or is known to be missing
  struct change leaving;
  uint32_t cookie;
  unsigned char out[OUT_BYTES];
  size_t out_at, out_end;
};

// ---- queue of changes

static void clear(struct change *change) {
  free(change->path);
  free(change->from);
  *change = (struct change){0};
}

static void drop_queue(struct watcher *w) {
  for (size_t i = 0; i < w->queued; i++) clear(&w->queue[i]);
  w->queued = 0;
  w->lost = true;
}

// True if the last queued change of the path reports that the entry was created or modified, and so covers another
// modification.
static bool is_queued(const struct watcher *w, const char *kind, const char *path) {
  if (strcmp(kind, "created") && strcmp(kind, "modified")) return false;
  for (size_t i = w->queued; i-- > 0;) {
    const struct change *change = &w->queue[i];
    if (change->from && !strcmp(change->from, path)) return false;
    if (strcmp(change->path, path)) continue;
    return !strcmp(change->kind, "created") || !strcmp(change->kind, kind);
  }
  return false;
}

// Adds a change to the queue, and takes ownership of `path` and `from`. A NULL path means that no memory was
// available: the change is lost.
static void queue_change(struct watcher *w, const char *kind, char *path, char *from, bool is_dir) {
  struct change change = {kind, path, from, is_dir};
  if (!path || strlen(path) + (from ? strlen(from) : 0) > PATHS_LIMIT) {
    clear(&change);
    return drop_queue(w);
  }
  if (is_queued(w, kind, path)) return clear(&change);
  if (w->queued == QUEUE_LIMIT) drop_queue(w);
  w->queue[w->queued++] = change;
}

// ---- watched directories

static struct directory *find_directory(struct watcher *w, int watch) {
  size_t low = 0, high = w->directory_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (w->directories[middle].watch < watch) low = middle + 1;
    else high = middle;
  }
  return low < w->directory_count && w->directories[low].watch == watch ? &w->directories[low] : NULL;
}

static void forget_directory(struct watcher *w, struct directory *directory) {
  size_t at = (size_t)(directory - w->directories);
  free(directory->path);
  w->directory_count--;
  memmove(directory, directory + 1, (w->directory_count - at) * sizeof *directory);
}

static char *join(const char *directory, const char *name) {
  char *path = NULL;
  const char *slash = directory[strlen(directory) - 1] == '/' ? "" : "/";
  return asprintf(&path, "%s%s%s", directory, slash, name) < 0 ? NULL : path;
}

static bool add_directory(struct watcher *w, int watch, const char *path) {
  struct directory *known = find_directory(w, watch);
  char *copy = strdup(path);
  if (!copy) return false;
  if (known) {
    free(known->path);
    known->path = copy;
    return true;
  }
  if (w->directory_count == w->directory_room) {
    size_t room = w->directory_room ? w->directory_room * 2 : 64;
    struct directory *larger = realloc(w->directories, room * sizeof *larger);
    if (!larger) return free(copy), false;
    w->directories = larger, w->directory_room = room;
  }
  // inotify gives each new watch a larger number, so adding it at the end keeps the order.
  w->directories[w->directory_count++] = (struct directory){watch, copy};
  return true;
}

// Watches a directory and all directories below it. With `is_new`, reports the entries that they already hold. Returns
// false beyond a limit.
static bool watch_tree(struct watcher *w, const char *path, bool is_new, int depth) {
  if (depth > DEPTH_LIMIT || w->directory_count >= DIRECTORY_LIMIT) return false;
  int watch = inotify_add_watch(w->inotify, path, EVENTS);
  if (watch < 0) return errno != ENOSPC && errno != ENOMEM; // deleted, or no longer a directory
  if (!add_directory(w, watch, path)) return false;
  DIR *directory = opendir(path);
  bool ok = true;
  for (struct dirent *entry; directory && ok && (entry = readdir(directory));) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    struct stat info;
    if (fstatat(dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW)) continue;
    char *below = join(path, entry->d_name);
    if (!below) ok = false;
    else if (is_new && !is_temporary(entry->d_name)) queue_change(w, "created", strdup(below), NULL, S_ISDIR(info.st_mode));
    if (ok && S_ISDIR(info.st_mode)) ok = watch_tree(w, below, is_new, depth + 1);
    free(below);
  }
  if (directory) closedir(directory);
  return ok;
}

static bool is_at_or_below(const char *path, const char *top) {
  size_t length = strlen(top);
  return !strncmp(path, top, length) && (path[length] == '/' || path[length] == 0);
}

static void unwatch_tree(struct watcher *w, const char *top) {
  for (size_t i = w->directory_count; i-- > 0;) {
    if (!is_at_or_below(w->directories[i].path, top)) continue;
    inotify_rm_watch(w->inotify, w->directories[i].watch);
    forget_directory(w, &w->directories[i]);
  }
}

// The watches move with their directories; only the paths change.
static void rename_tree(struct watcher *w, const char *from, const char *to) {
  for (size_t i = 0; i < w->directory_count; i++) {
    char *path = w->directories[i].path, *renamed;
    if (!is_at_or_below(path, from)) continue;
    if (asprintf(&renamed, "%s%s", to, path + strlen(from)) < 0) continue;
    free(path);
    w->directories[i].path = renamed;
  }
}

// ---- events of inotify

// Reports a deletion: the second half of a move is missing, so the entry left the watched tree.
static void report_departure(struct watcher *w) {
  struct change gone = w->leaving;
  w->leaving = (struct change){0};
  if (!gone.path) return;
  if (gone.is_dir) unwatch_tree(w, gone.path);
  const char *name = strrchr(gone.path, '/') + 1;
  if (is_temporary(name)) clear(&gone);
  else queue_change(w, "deleted", gone.path, NULL, gone.is_dir);
}

static void report_creation(struct watcher *w, char *path, bool is_dir) {
  queue_change(w, "created", strdup(path), NULL, is_dir);
  if (is_dir && w->recursive && !watch_tree(w, path, true, 0)) drop_queue(w);
  free(path);
}

static void report_arrival(struct watcher *w, uint32_t cookie, const char *name, char *path, bool is_dir) {
  struct change from = w->leaving;
  if (!from.path || w->cookie != cookie) {
    report_departure(w);
    return report_creation(w, path, is_dir);
  }
  w->leaving = (struct change){0};
  const char *old_name = strrchr(from.path, '/') + 1;
  if (is_temporary(old_name)) {
    // The rename comes from an upload through the guest.
    queue_change(w, is_replacement(old_name) ? "modified" : "created", path, NULL, false);
    clear(&from);
  } else if (is_temporary(name)) {
    queue_change(w, "deleted", from.path, NULL, is_dir);
    free(path);
  } else {
    if (is_dir) rename_tree(w, from.path, path);
    queue_change(w, "moved", path, from.path, is_dir);
  }
}

static void take_event(struct watcher *w, const struct inotify_event *event) {
  if (event->mask & IN_Q_OVERFLOW) return drop_queue(w);
  struct directory *directory = find_directory(w, event->wd);
  if (event->wd == w->root && event->mask & (IN_IGNORED | IN_MOVE_SELF)) w->over = true;
  if (event->mask & IN_IGNORED) {
    if (directory) forget_directory(w, directory);
    return;
  }
  if (!directory || event->len == 0) return;
  const char *name = event->name;
  bool is_dir = event->mask & IN_ISDIR;
  char *path = join(directory->path, name);
  if (!path) return drop_queue(w);
  if (w->leaving.path && !(event->mask & IN_MOVED_TO)) report_departure(w);
  if (event->mask & IN_MOVED_TO) return report_arrival(w, event->cookie, name, path, is_dir);
  if (event->mask & IN_MOVED_FROM) {
    w->leaving = (struct change){"moved", path, NULL, is_dir};
    w->cookie = event->cookie;
    return;
  }
  if (is_temporary(name)) return free(path);
  if (event->mask & IN_DELETE) return queue_change(w, "deleted", path, NULL, is_dir);
  if (!(event->mask & IN_CREATE)) return queue_change(w, "modified", path, NULL, false);
  report_creation(w, path, is_dir);
}

// Empties inotify's queue, up to a limit: fast events must not block the connection.
static bool take_events(struct watcher *w, char *bytes) {
  for (int reads = 0; reads < READS_AT_ONCE; reads++) {
    ssize_t got = read(w->inotify, bytes, READ_BYTES);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return reads > 0;
    for (char *at = bytes; at < bytes + got;) {
      const struct inotify_event *event = (const struct inotify_event *)at;
      take_event(w, event);
      at += sizeof *event + event->len;
    }
  }
  return true;
}

static void gather(struct watcher *w, char *bytes) {
  poll(NULL, 0, GATHER_MS);
  take_events(w, bytes);
  if (!w->leaving.path) return;
  poll(NULL, 0, GATHER_MS);
  take_events(w, bytes);
  report_departure(w);
}

// ---- replies to the host

static bool put(struct watcher *w, struct reply *reply) {
  if (reply->length > OUT_BYTES - w->out_end) return false;
  put_u32(reply->bytes, (uint32_t)(reply->length - HEADER_BYTES));
  memcpy(w->out + w->out_end, reply->bytes, reply->length);
  w->out_end += reply->length;
  return true;
}

static void fill(struct watcher *w) {
  struct reply reply;
  size_t taken = 0;
  if (w->out_at < w->out_end) return;
  w->out_at = w->out_end = 0;
  if (w->lost) {
    reply_begin(&reply, CHANGE);
    reply_text(&reply, F_KIND, "overflow");
    put(w, &reply);
    w->lost = false;
  }
  for (; taken < w->queued; taken++) {
    const struct change *change = &w->queue[taken];
    reply_begin(&reply, CHANGE);
    reply_text(&reply, F_KIND, change->kind);
    reply_text(&reply, F_PATH, change->path);
    if (change->from) reply_text(&reply, F_FROM, change->from);
    reply_number(&reply, F_IS_DIR, change->is_dir);
    if (!put(w, &reply)) break;
  }
  for (size_t i = 0; i < taken; i++) clear(&w->queue[i]);
  w->queued -= taken;
  memmove(w->queue, w->queue + taken, w->queued * sizeof *w->queue);
}

// Sends waiting output. Returns false once the host has disconnected.
static bool flush_out(struct watcher *w) {
  for (fill(w); w->out_at < w->out_end; fill(w)) {
    ssize_t sent = send(w->connection, w->out + w->out_at, w->out_end - w->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) w->out_at += (size_t)sent;
    else if (errno == EAGAIN) return true;
    else if (errno != EINTR) return false;
  }
  return true;
}

static void run(struct watcher *w, char *bytes) {
  while (!w->over || w->out_at < w->out_end || w->queued > 0 || w->lost) {
    short wanted = w->out_at < w->out_end ? POLLIN | POLLOUT : POLLIN;
    struct pollfd fds[] = {{.fd = w->over ? -1 : w->inotify, .events = POLLIN},
                           {.fd = w->connection, .events = wanted}};
    poll(fds, 2, -1);
    // The host sends nothing while it watches, so any event is its disconnect.
    if (fds[1].revents & ~POLLOUT) return;
    if (fds[0].revents) gather(w, bytes);
    if (!flush_out(w)) return;
  }
  send_empty(w->connection, END);
}

static bool begin(struct watcher *w, const struct request *request, struct failure *failure) {
  char *path = request->text[F_PATH];
  struct stat info;
  if (!request->has[F_PATH]) return fail(failure, "guest_protocol", "path is missing");
  for (size_t last = strlen(path) - 1; last > 0 && path[last] == '/'; last--) path[last] = 0;
  if (stat(path, &info)) return fail_errno(failure, errno, path);
  if (!S_ISDIR(info.st_mode)) return fail_errno(failure, ENOTDIR, path);
  w->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (w->inotify < 0) return fail_errno(failure, errno, path);
  w->recursive = request->number[F_RECURSIVE];
  // Follows symlinks of the requested path, but no symlink below it.
  w->root = inotify_add_watch(w->inotify, path, EVENTS & ~(uint32_t)IN_DONT_FOLLOW);
  if (w->root < 0) return fail_errno(failure, errno, path);
  char *real = realpath(path, NULL);
  bool ok = real && (w->recursive ? watch_tree(w, real, false, 0) : add_directory(w, w->root, real));
  if (ok) rename_tree(w, real, path);
  else if (real) fail(failure, "too_large", "there are more than %d directories below %.400s", DIRECTORY_LIMIT, path);
  else fail_errno(failure, errno, path);
  free(real);
  return ok;
}

void serve_watch(int connection, const struct request *request) {
  struct failure failure;
  struct watcher *w = NULL;
  char *bytes = NULL;
  if (atomic_fetch_add(&watchers, 1) >= WATCHER_LIMIT) {
    send_error(connection, "busy", "too many watchers");
  } else if (!(w = calloc(1, sizeof *w)) || !(bytes = malloc(READ_BYTES))) {
    send_error(connection, "failed", "no memory for a watch");
  } else {
    w->inotify = -1;
    w->connection = connection;
    if (!begin(w, request, &failure)) send_failure(connection, &failure);
    else if (send_empty(connection, OK)) run(w, bytes);
    // A checkpoint fails while watches or the connection are open.
    if (w->inotify >= 0) close(w->inotify);
    for (size_t i = 0; i < w->directory_count; i++) free(w->directories[i].path);
    for (size_t i = 0; i < w->queued; i++) clear(&w->queue[i]);
    clear(&w->leaving);
    free(w->directories);
  }
  free(bytes);
  free(w);
  atomic_fetch_sub(&watchers, 1);
}
