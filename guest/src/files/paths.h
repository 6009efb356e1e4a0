// Resolves paths and checks whether a change below them is allowed.
#ifndef KONTOR_PATHS_H
#define KONTOR_PATHS_H

#include "frame.h"

struct real_path {
  char text[PATH_LIMIT + 1]; // absolute, without symlinks, `.` and `..`
  size_t existing;           // length of the part that exists
};

// Each function follows every symlink of `path`, and keeps components that do not exist yet. Each refuses a
// path outside the request's roots. They differ in the last component. This function returns the entry
// itself, even if it is a symlink (move, remove).
bool resolve_below_roots(const struct request *request, const char *path, struct real_path *real,
                         struct failure *failure);
// Returns the target of the last component (write).
bool resolve_target_below_roots(const struct request *request, const char *path, struct real_path *real,
                                struct failure *failure);
// Returns the target of the last component, which may be a root itself (mkdir).
bool resolve_at_or_below_roots(const struct request *request, const char *path, struct real_path *real,
                               struct failure *failure);
// Creates the missing directories above the last component, mode 0755.
bool make_parents(struct real_path *real, struct failure *failure);

#endif
