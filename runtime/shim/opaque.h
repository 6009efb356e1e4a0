#pragma once

/* `arguments` follow the word `opaque`. The exit code, or -1 for words that it does not know. */
int opaque_main(int count, char **arguments);
