// State of the machine: name, base environment of every process, and users.
#ifndef KONTOR_MACHINE_H
#define KONTOR_MACHINE_H

#include "frame.h"

struct user {
  unsigned uid, gid;
  unsigned groups[64];
  int group_count;
  char name[256], home[512], shell[256];
};

// Finds a user by name or number in /etc/passwd. A number without an entry is accepted, with `/` as home.
bool find_user(const char *wanted, struct user *user, struct failure *failure);

// Returns a new NULL-terminated environment: the user's defaults, then the machine's variables, then `extra`.
// Release it with free().
char **make_environment(const struct user *user, char *const *extra, size_t extra_count);

void serve_configure(int connection, const struct request *request);
void serve_blockers(int connection);

#endif
