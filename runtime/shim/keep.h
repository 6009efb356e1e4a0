#pragma once

/* `arguments` follow the word `keep`. Returns only at the end, with the exit code, or -1 for unknown
 * arguments. */
int keep_main(int count, char **arguments);
