// Handlers of the requests. Each sends its reply on the connection, which the caller closes.
#ifndef KONTOR_SERVICES_H
#define KONTOR_SERVICES_H

#include "frame.h"

void serve_spawn(int connection, const struct request *request);       // stream.c
void serve_background(int connection, const struct request *request);  // commands.c: SPAWN with a command id
void serve_command(int connection, const struct request *request);     // commands.c: COMMAND_*
void serve_read(int connection, const struct request *request);        // files.c, also the following
void serve_write(int connection, const struct request *request);
void serve_list(int connection, const struct request *request);
void serve_stat(int connection, const struct request *request);
void serve_change(int connection, const struct request *request);      // MKDIR, MOVE, REMOVE
void serve_watch(int connection, const struct request *request);       // watch.c
void serve_tunnel(int connection, const struct request *request);      // tunnel.c
void end_tunnels(void);                                                // their threads close the connections

// Lets another thread dial the host's next spare connection, before an operation that may take long. Returns false if
// no thread is available: the host has no spare then, so the caller must end soon (guest.c).
bool let_another_dial(void);

// True for names of temporary files that an upload writes beside its target (files.c). `is_replacement`: only for files
// that will replace a file.
bool is_temporary(const char *name);
bool is_replacement(const char *name);

#endif
