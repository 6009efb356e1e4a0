#pragma once

/* `arguments` follow the word `enclose`. The exit code, or -1 for words that it does not know. */
int enclose_main(int count, char **arguments);
