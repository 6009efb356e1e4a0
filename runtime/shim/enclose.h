#pragma once

/* `arguments` follow the word `enclose`. Returns the exit code, or -1 for unknown arguments. */
int enclose_main(int count, char **arguments);
