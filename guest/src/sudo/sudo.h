// `sudo` for the ordinary user of an image. gVisor ignores the set-user-ID bit, so no program can become root
// by itself.
//
// The command `sudo` (a link to this program) connects to PID 1. PID 1 reads the client's user from the
// kernel and checks it against /etc/sudoers.d/kontor. PID 1 starts a helper as root on that connection. The
// client sends the helper its three descriptors and the command. The helper runs the command and sends its
// exit status. All users of the machine belong to one tenant, who has root anyway: this is a convenience, not
// a security boundary.
#ifndef KONTOR_SUDO_H
#define KONTOR_SUDO_H

#include <stdbool.h>
#include <stddef.h>

enum {
  SUDO_PAYLOAD_LIMIT = 1024 * 1024,
  SUDO_LIST_LIMIT = 32768, // limit of the number of arguments, and of variables
};

// First byte of a message from the helper. The status of waitpid follows SUDO_ENDED as a native int.
enum sudo_reply { SUDO_REFUSED = 'N', SUDO_TERMINAL = 'P', SUDO_ENDED = 'E' };

// Starts the part of PID 1: accepts requests until the machine ends.
bool start_sudo(void);
// Entry point of the helper, whose connection is descriptor 0.
int sudo_helper(void);
// Entry point of the command.
int sudo_client(int count, char **arguments);

// Fills in a socket address in the machine's own network namespace. Returns its length.
struct sockaddr_un;
unsigned sudo_address(struct sockaddr_un *address);
// Sends `length` bytes with `count` descriptors. Returns false on an error.
bool send_with_descriptors(int connection, const void *bytes, size_t length, const int *descriptors, size_t count);
// Receives up to `length` bytes and exactly `count` descriptors. Closes further descriptors. Returns what recvmsg
// returns, or -1.
long receive_descriptors(int connection, void *bytes, size_t length, int *descriptors, size_t count);

#endif
