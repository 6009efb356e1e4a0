#pragma once

/* `arguments` follow the word `opaque`. Returns the exit code, or -1 for unknown arguments. */
int opaque_main(int count, char **arguments);
