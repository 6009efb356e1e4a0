#pragma once
#include <stdbool.h>

/* `arguments` follow the word `root`. Returns the exit code, or -1 for unknown arguments. */
int root_main(int count, char **arguments);
