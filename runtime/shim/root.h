#pragma once
#include <stdbool.h>

/* `arguments` follow the word `root`. The exit code, or -1 for words that it does not know. */
int root_main(int count, char **arguments);
