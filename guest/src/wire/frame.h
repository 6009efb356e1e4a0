// Frames and fields: the wire format of ../PROTOCOL.md. Independent of what each request does.
#ifndef KONTOR_FRAME_H
#define KONTOR_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  PROTOCOL_VERSION = 1,
  HEADER_BYTES = 5,            // u32 LE length of the payload, u8 type
  FRAME_LIMIT = 256 * 1024,    // payload limit of every frame except a request
  REQUEST_LIMIT = 1024 * 1024, // payload limit of a connection's first frame
  PATH_LIMIT = 4095,           // PATH_MAX without the NUL
  LIST_LIMIT = 1024,           // limit of the argv entries, and of the env entries, of a request
  ROOT_LIMIT = 8,
};

enum frame_type {
  // requests: a connection's first frame
  PING = 0x01,
  CONFIGURE = 0x02,
  SPAWN = 0x03,
  SIGNAL = 0x04,
  LIMIT = 0x05,
  READ = 0x10,
  WRITE = 0x11,
  LIST = 0x12,
  STAT = 0x13,
  MKDIR = 0x14,
  MOVE = 0x15,
  REMOVE = 0x16,
  WATCH = 0x17,
  TUNNEL = 0x20,
  COMMAND_LIST = 0x30,
  COMMAND_GET = 0x31,
  COMMAND_LOGS = 0x32,
  COMMAND_KILL = 0x33,
  COMMAND_STDIN = 0x34,
  COMMAND_RESIZE = 0x35,
  BLOCKERS = 0x38,
  // frames that the host sends after a request
  STDIN = 0x40,
  STDIN_EOF = 0x41,
  UPLOAD = 0x43,
  UPLOAD_END = 0x44,
  // replies
  PONG = 0x80,
  OK = 0x81,
  ERROR = 0x82,
  STARTED = 0x83,
  STDOUT = 0x84,
  STDERR = 0x85,
  EXIT = 0x86,
  META = 0x87,
  DATA = 0x88,
  END = 0x89,
  ENTRY = 0x8a,
  DONE = 0x8b,
  COMMAND = 0x8c,
  CHUNK = 0x8d,
  BLOCKER = 0x8e,
  CHANGE = 0x8f,
};

enum field_tag {
  F_PATH = 1,
  F_MODE = 2,
  F_ROOT = 3,
  F_PARENTS = 4,
  F_OVERWRITE = 5,
  F_TO = 6,
  F_MAX_BYTES = 7,
  F_ARGV = 8,
  F_SHELL = 9,
  F_CWD = 10,
  F_ENV = 11,
  F_USER = 12,
  F_TIMEOUT_MS = 13,
  F_KILL_ON_DISCONNECT = 14,
  F_COMMAND_ID = 15,
  F_TAG = 16,
  F_PORT = 17,
  F_HOSTNAME = 18,
  F_OFFSET = 19,
  F_LIMIT = 20,
  F_FOLLOW = 21,
  F_DATA = 22,
  F_EOF = 23,
  F_SIGNAL = 24,
  F_PID = 25,
  F_COLS = 26,
  F_ROWS = 27,
  F_RECURSIVE = 28,
  F_MEMORY = 29,
  F_AFTER = 30,
  F_CPUS = 31,
  // fields of replies only
  F_VERSION = 32,
  F_BUILD = 33,
  F_CODE = 34,
  F_MESSAGE = 35,
  F_EXIT_CODE = 36,
  F_TIMED_OUT = 37,
  F_DURATION_US = 38,
  F_SIZE = 39,
  F_MODIFIED_MS = 40,
  F_IS_DIR = 41,
  F_NAME = 42,
  F_STATUS = 43,
  F_STARTED_MS = 44,
  F_ENDED_MS = 45,
  F_OUTPUT_BYTES = 46,
  F_STREAM = 47,
  F_DROPPED_BYTES = 48,
  F_COMM = 49,
  F_REASON = 50,
  F_COMMAND_TEXT = 51,
  F_KIND = 52,
  F_FROM = 53,
  F_OUT_OF_MEMORY = 54,
  F_UID = 55,
  F_GID = 56,
  F_LINK_TARGET = 57,
  FIELD_TAGS = 64,
};

// A decoded request. Texts point into the payload, which must outlive the request. Absent numbers are 0.
struct request {
  uint8_t type;
  bool has[FIELD_TAGS];
  uint64_t number[FIELD_TAGS];
  char *text[FIELD_TAGS]; // NUL-terminated; not NULL if `has` is true
  unsigned char *data;
  size_t data_length;
  char *argv[LIST_LIMIT + 1];
  char *env[LIST_LIMIT + 1];
  char *roots[ROOT_LIMIT + 1];
  size_t argv_count, env_count, root_count;
};

// Reason of a refusal: an error code of PROTOCOL.md, and a sentence that describes the error.
struct failure {
  const char *code;
  char message[512];
};

// Decodes the fields of a request's payload. Needs one spare byte behind `length`, and writes to `payload`: the NUL of
// each text replaces the next field's tag, which has been read by then. Returns false with the reason in `failure`.
bool request_parse(struct request *request, uint8_t type, unsigned char *payload, size_t length,
                   struct failure *failure);

// Prints a request as one line of text, in the format of the vectors.
void request_describe(const struct request *request, char *text, size_t size);

// A frame under construction. A field that does not fit in `bytes` is left out whole, so the frame stays
// well-formed.
struct reply {
  size_t length;
  unsigned char bytes[8192];
};

void reply_begin(struct reply *reply, uint8_t type);
void reply_number(struct reply *reply, uint8_t tag, uint64_t number);
void reply_text(struct reply *reply, uint8_t tag, const char *text);

void put_header(unsigned char header[HEADER_BYTES], uint32_t length, uint8_t type);
uint32_t get_u32(const unsigned char *bytes);
void put_u32(unsigned char *bytes, uint32_t value);
void put_u64(unsigned char *bytes, uint64_t value);

// Blocking transfers of exactly `length` bytes; false at EOF or error.
bool read_exactly(int fd, void *bytes, size_t length);
bool write_exactly(int fd, const void *bytes, size_t length);

bool send_reply(int fd, struct reply *reply);
bool send_empty(int fd, uint8_t type);
bool send_error(int fd, const char *code, const char *message);
bool send_failure(int fd, const struct failure *failure);
// Sends a frame of `length` bytes at `frame + HEADER_BYTES`, whose first HEADER_BYTES are free for the header.
bool send_prefixed(int fd, unsigned char *frame, uint32_t length, uint8_t type);

// Fills a failure and returns false, so that a caller can write `return fail(...)`.
bool fail(struct failure *failure, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));
// Fills a failure from an errno, with the matching error code.
bool fail_errno(struct failure *failure, int error, const char *what);

#endif
