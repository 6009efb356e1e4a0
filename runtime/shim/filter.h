#pragma once

/* Sets no_new_privs and the system call filter of an enclosure's program and all its descendants. */
void install_filter(void);
