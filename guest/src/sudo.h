// `sudo` for an image's ordinary user. gVisor ignores the set-user-ID bit, so no program can become root by itself.
//
// The command `sudo` (a link to this program) dials PID 1, which knows its user from the kernel and looks into
// /etc/sudoers.d/kontor. PID 1 starts a helper as root on that connection. The client sends the helper its three
// descriptors and the command; the helper runs it, and sends the end. All of the machine's users belong to one tenant,
// who has root anyway: this is a convenience, and no wall.
#ifndef KONTOR_SUDO_H
#define KONTOR_SUDO_H

#include <stdbool.h>
#include <stddef.h>

enum {
  SUDO_PAYLOAD_LIMIT = 1024 * 1024,
  SUDO_LIST_LIMIT = 32768, // arguments, and variables
};

// From the helper: one byte, and after SUDO_ENDED the status of waitpid as a native int.
enum sudo_reply { SUDO_REFUSED = 'N', SUDO_TERMINAL = 'P', SUDO_ENDED = 'E' };

// In PID 1: takes requests for as long as the machine lives.
bool start_sudo(void);
// The helper's whole life; its connection is descriptor 0.
int sudo_helper(void);
// The command.
int sudo_client(int count, char **arguments);

// An address of the machine's own network namespace. Returns its length.
struct sockaddr_un;
unsigned sudo_address(struct sockaddr_un *address);
// Sends `length` bytes with `count` descriptors. False at any error.
bool send_with_descriptors(int connection, const void *bytes, size_t length, const int *descriptors, size_t count);
// Receives up to `length` bytes and exactly `count` descriptors. Closes others. Returns what recvmsg does, or -1.
long receive_descriptors(int connection, void *bytes, size_t length, int *descriptors, size_t count);

#endif
