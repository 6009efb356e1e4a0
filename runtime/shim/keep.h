#pragma once

/* `arguments` follow the word `keep`. Returns the exit code when the program has ended for good, or -1 for unknown
 * arguments. */
int keep_main(int count, char **arguments);
