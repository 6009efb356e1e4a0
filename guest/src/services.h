// What the guest does for a request. Each function answers on the connection and leaves closing it to the caller.
#ifndef KONTOR_SERVICES_H
#define KONTOR_SERVICES_H

#include "frame.h"

void serve_spawn(int connection, const struct request *request);       // stream.c
void serve_background(int connection, const struct request *request);  // commands.c: SPAWN with a command id
void serve_command(int connection, const struct request *request);     // commands.c: COMMAND_*
void serve_read(int connection, const struct request *request);        // files.c, and the following
void serve_write(int connection, const struct request *request);
void serve_list(int connection, const struct request *request);
void serve_stat(int connection, const struct request *request);
void serve_change(int connection, const struct request *request);      // MKDIR, MOVE, REMOVE
void serve_watch(int connection, const struct request *request);       // watch.c
void serve_tunnel(int connection, const struct request *request);      // tunnel.c
void end_tunnels(void);                                                // all of them; their threads close them

// Before what may take long: the host gets its next spare connection. False, and it has none, where no thread is to be
// had; whoever serves then ends soon (guest.c).
bool let_another_dial(void);

// Names of files that are being written beside their place (files.c), and of those that will replace another.
bool is_temporary(const char *name);
bool is_replacement(const char *name);

#endif
