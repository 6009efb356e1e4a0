#define _GNU_SOURCE
#include "frame.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum field_kind { UNKNOWN, NUMBER, TEXT, PATH, BYTES, ARGV_ENTRY, ENV_ENTRY, ROOT_ENTRY };

// Fields of a request. Unknown tags are skipped, so that an older guest accepts a newer host.
static const struct field {
  enum field_kind kind;
  const char *name;
} FIELDS[FIELD_TAGS] = {
    [F_PATH] = {PATH, "path"},
    [F_MODE] = {NUMBER, "mode"},
    [F_ROOT] = {ROOT_ENTRY, "root"},
    [F_PARENTS] = {NUMBER, "parents"},
    [F_OVERWRITE] = {NUMBER, "overwrite"},
    [F_TO] = {PATH, "to"},
    [F_MAX_BYTES] = {NUMBER, "max_bytes"},
    [F_ARGV] = {ARGV_ENTRY, "argv"},
    [F_SHELL] = {TEXT, "shell"},
    [F_CWD] = {PATH, "cwd"},
    [F_ENV] = {ENV_ENTRY, "env"},
    [F_USER] = {TEXT, "user"},
    [F_TIMEOUT_MS] = {NUMBER, "timeout_ms"},
    [F_KILL_ON_DISCONNECT] = {NUMBER, "kill_on_disconnect"},
    [F_COMMAND_ID] = {TEXT, "command_id"},
    [F_TAG] = {TEXT, "tag"},
    [F_PORT] = {NUMBER, "port"},
    [F_HOSTNAME] = {TEXT, "hostname"},
    [F_OFFSET] = {NUMBER, "offset"},
    [F_LIMIT] = {NUMBER, "limit"},
    [F_FOLLOW] = {NUMBER, "follow"},
    [F_DATA] = {BYTES, "data"},
    [F_EOF] = {NUMBER, "eof"},
    [F_SIGNAL] = {NUMBER, "signal"},
    [F_PID] = {NUMBER, "pid"},
    [F_COLS] = {NUMBER, "cols"},
    [F_ROWS] = {NUMBER, "rows"},
    [F_RECURSIVE] = {NUMBER, "recursive"},
    [F_MEMORY] = {NUMBER, "memory"},
    [F_AFTER] = {TEXT, "after"},
    [F_CPUS] = {NUMBER, "cpus"},
};

uint32_t get_u32(const unsigned char *b) {
  return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static uint64_t get_u64(const unsigned char *b) { return (uint64_t)get_u32(b) | (uint64_t)get_u32(b + 4) << 32; }

void put_u32(unsigned char *bytes, uint32_t value) {
  for (int i = 0; i < 4; i++) bytes[i] = (unsigned char)(value >> (8 * i));
}

void put_u64(unsigned char *bytes, uint64_t value) {
  for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(value >> (8 * i));
}

void put_header(unsigned char header[HEADER_BYTES], uint32_t length, uint8_t type) {
  put_u32(header, length);
  header[4] = type;
}

bool fail(struct failure *failure, const char *code, const char *format, ...) {
  failure->code = code;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure->message, sizeof failure->message, format, arguments);
  va_end(arguments);
  return false;
}

bool fail_errno(struct failure *failure, int error, const char *what) {
  static const struct { int error; const char *code; } CODES[] = {
      {ENOENT, "path_not_found"}, {ENOTDIR, "not_directory"},  {EISDIR, "is_directory"}, {EEXIST, "exists"},
      {ENOTEMPTY, "exists"},      {EACCES, "not_permitted"},   {EPERM, "not_permitted"}, {EROFS, "not_permitted"},
      {ENXIO, "not_permitted"},   {ENAMETOOLONG, "invalid_path"}, {ELOOP, "invalid_path"}, {ENOSPC, "disk_full"},
      {EDQUOT, "disk_full"},      {EFBIG, "too_large"},
  };
  const char *code = "failed";
  for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
    if (CODES[i].error == error) code = CODES[i].code;
  return fail(failure, code, "%.400s: %s", what, strerror(error));
}

static bool is_full(const char *list, size_t count, size_t limit, struct failure *failure) {
  if (count < limit) return false;
  fail(failure, "guest_protocol", "more than %zu %s entries", limit, list);
  return true;
}

static bool check_path(const char *name, const char *path, size_t length, struct failure *failure) {
  if (length > PATH_LIMIT) return fail(failure, "invalid_path", "%s is longer than %d bytes", name, PATH_LIMIT);
  if (path[0] != '/') return fail(failure, "invalid_path", "%s must be absolute", name);
  return true;
}

// Stores a field in the request. The caller terminates the text with NUL.
static bool take_field(struct request *r, uint8_t tag, unsigned char *value, size_t length, struct failure *failure) {
  if (tag >= FIELD_TAGS || FIELDS[tag].kind == UNKNOWN) return true;
  const struct field *field = &FIELDS[tag];
  if (field->kind == NUMBER) {
    if (length != 8) return fail(failure, "guest_protocol", "%s is not a number of 8 bytes", field->name);
    r->number[tag] = get_u64(value);
    r->has[tag] = true;
    return true;
  }
  if (field->kind == BYTES) {
    r->data = value;
    r->data_length = length;
    r->has[tag] = true;
    return true;
  }
  bool is_path = field->kind == PATH || field->kind == ROOT_ENTRY;
  if (memchr(value, 0, length))
    return fail(failure, is_path ? "invalid_path" : "guest_protocol", "%s holds a NUL byte", field->name);
  char *text = (char *)value;
  if (is_path && !check_path(field->name, text, length, failure)) return false;
  switch (field->kind) {
  case ARGV_ENTRY:
    if (is_full("argv", r->argv_count, LIST_LIMIT, failure)) return false;
    r->argv[r->argv_count++] = text;
    break;
  case ENV_ENTRY:
    if (is_full("env", r->env_count, LIST_LIMIT, failure)) return false;
    if (text[0] == '=' || !strchr(text, '=')) return fail(failure, "guest_protocol", "an env entry is not K=V");
    r->env[r->env_count++] = text;
    break;
  case ROOT_ENTRY:
    if (is_full("root", r->root_count, ROOT_LIMIT, failure)) return false;
    r->roots[r->root_count++] = text;
    break;
  default:
    r->text[tag] = text;
  }
  r->has[tag] = true;
  return true;
}

bool request_parse(struct request *r, uint8_t type, unsigned char *payload, size_t length, struct failure *failure) {
  memset(r, 0, sizeof *r);
  r->type = type;
  size_t at = 0;
  uint8_t tag = length > 0 ? payload[0] : 0;
  while (at < length) {
    if (length - at < 5) return fail(failure, "guest_protocol", "a field is cut short");
    size_t size = get_u32(payload + at + 1);
    unsigned char *value = payload + at + 5;
    if (size > length - at - 5) return fail(failure, "guest_protocol", "a field is longer than its frame");
    at += 5 + size;
    uint8_t next = at < length ? payload[at] : 0;
    payload[at] = 0;
    if (!take_field(r, tag, value, size, failure)) return false;
    tag = next;
  }
  return true;
}

static size_t append(char *text, size_t size, size_t at, const char *format, ...) {
  if (at >= size) return at;
  va_list arguments;
  va_start(arguments, format);
  int wrote = vsnprintf(text + at, size - at, format, arguments);
  va_end(arguments);
  return at + (wrote > 0 ? (size_t)wrote : 0);
}

void request_describe(const struct request *r, char *text, size_t size) {
  size_t at = append(text, size, 0, "%02x", r->type);
  for (int tag = 0; tag < FIELD_TAGS; tag++) {
    if (!r->has[tag]) continue;
    const char *name = FIELDS[tag].name;
    switch (FIELDS[tag].kind) {
    case NUMBER:
      at = append(text, size, at, " %s=%llu", name, (unsigned long long)r->number[tag]);
      break;
    case BYTES:
      at = append(text, size, at, " %s=", name);
      for (size_t i = 0; i < r->data_length; i++) at = append(text, size, at, "%02x", r->data[i]);
      break;
    case ARGV_ENTRY:
      for (size_t i = 0; i < r->argv_count; i++) at = append(text, size, at, " argv=%s", r->argv[i]);
      break;
    case ENV_ENTRY:
      for (size_t i = 0; i < r->env_count; i++) at = append(text, size, at, " env=%s", r->env[i]);
      break;
    case ROOT_ENTRY:
      for (size_t i = 0; i < r->root_count; i++) at = append(text, size, at, " root=%s", r->roots[i]);
      break;
    default:
      at = append(text, size, at, " %s=%s", name, r->text[tag]);
    }
  }
}

void reply_begin(struct reply *reply, uint8_t type) {
  reply->length = HEADER_BYTES;
  reply->bytes[4] = type;
}

static void reply_field(struct reply *reply, uint8_t tag, const void *value, size_t length) {
  if (length > sizeof reply->bytes - reply->length || sizeof reply->bytes - reply->length - length < 5) return;
  unsigned char *at = reply->bytes + reply->length;
  at[0] = tag;
  put_u32(at + 1, (uint32_t)length);
  memcpy(at + 5, value, length);
  reply->length += 5 + length;
}

void reply_number(struct reply *reply, uint8_t tag, uint64_t number) {
  unsigned char value[8];
  put_u64(value, number);
  reply_field(reply, tag, value, sizeof value);
}

void reply_text(struct reply *reply, uint8_t tag, const char *text) { reply_field(reply, tag, text, strlen(text)); }

bool read_exactly(int fd, void *bytes, size_t length) {
  for (unsigned char *at = bytes; length > 0;) {
    ssize_t got = read(fd, at, length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    length -= (size_t)got;
  }
  return true;
}

bool write_exactly(int fd, const void *bytes, size_t length) {
  for (const unsigned char *at = bytes; length > 0;) {
    ssize_t wrote = write(fd, at, length);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    at += wrote;
    length -= (size_t)wrote;
  }
  return true;
}

bool send_reply(int fd, struct reply *reply) {
  put_u32(reply->bytes, (uint32_t)(reply->length - HEADER_BYTES));
  return write_exactly(fd, reply->bytes, reply->length);
}

bool send_empty(int fd, uint8_t type) {
  unsigned char header[HEADER_BYTES];
  put_header(header, 0, type);
  return write_exactly(fd, header, sizeof header);
}

bool send_error(int fd, const char *code, const char *message) {
  struct reply reply;
  reply_begin(&reply, ERROR);
  reply_text(&reply, F_CODE, code);
  reply_text(&reply, F_MESSAGE, message);
  return send_reply(fd, &reply);
}

bool send_failure(int fd, const struct failure *failure) { return send_error(fd, failure->code, failure->message); }

bool send_prefixed(int fd, unsigned char *frame, uint32_t length, uint8_t type) {
  put_header(frame, length, type);
  return write_exactly(fd, frame, HEADER_BYTES + (size_t)length);
}
