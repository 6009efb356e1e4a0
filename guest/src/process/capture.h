#ifndef KONTOR_CAPTURE_H
#define KONTOR_CAPTURE_H

// Writes the root filesystem to standard output. Returns the exit status.
int capture(void);

#endif
