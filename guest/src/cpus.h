// Limits the number of processors that processes see. gVisor itself shows at least two.
#ifndef KONTOR_CPUS_H
#define KONTOR_CPUS_H

#include <stdint.h>

// A count of 0 changes nothing. A count above the kernel's number shows the kernel's number.
void limit_cpus(uint64_t count);
// Limits the processors of a child. Called between clone and exec.
void limit_child_cpus(void);

#endif
