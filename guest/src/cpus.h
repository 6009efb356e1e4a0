// Shows processes as many processors as the machine may use. gVisor itself shows at least two.
#ifndef KONTOR_CPUS_H
#define KONTOR_CPUS_H

#include <stdint.h>

// 0 changes nothing. A count above the kernel's shows the kernel's.
void limit_cpus(uint64_t count);
// In a child between clone and exec.
void limit_child_cpus(void);

#endif
