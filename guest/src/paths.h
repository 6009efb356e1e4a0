// Where a path really leads, and whether a change may happen there.
#ifndef KONTOR_PATHS_H
#define KONTOR_PATHS_H

#include "frame.h"

struct real_path {
  char text[PATH_LIMIT + 1]; // absolute, no symlink in it, no `.`, no `..`
  size_t existing;           // bytes of it that exist
};

// Each follows every symlink of `path` and keeps what does not exist yet as it stands; each refuses what does not lie
// below one of the request's roots. They differ in the last component:
// the file system's entry itself, a symlink being one (move, remove);
bool resolve_below_roots(const struct request *request, const char *path, struct real_path *real,
                         struct failure *failure);
// what the entry leads to (write);
bool resolve_target_below_roots(const struct request *request, const char *path, struct real_path *real,
                                struct failure *failure);
// what it leads to, a root itself included (mkdir).
bool resolve_at_or_below_roots(const struct request *request, const char *path, struct real_path *real,
                               struct failure *failure);
// Makes the directories above the last component that do not exist, mode 0755.
bool make_parents(struct real_path *real, struct failure *failure);

#endif
