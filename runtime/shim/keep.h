#pragma once

/* `arguments` follow the word `keep`. Does not return but with the exit code, or -1 for words that it does not know. */
int keep_main(int count, char **arguments);
