// vectors REQUESTS REPLIES: compares the guest's codec with the golden vectors, and checks the ring.
#include <stdbool.h>
#include <stdint.h>

#include "frame.h"
#include "ring.h"
#include "vectors_file.h"

static int failures, checks;

static void check(bool good, const char *what, const char *detail) {
  checks++;
  if (good) return;
  failures++;
  printf("FAILED %s: %s\n", what, detail);
}

static void check_request(const char *line) {
  static struct request request;
  struct failure failure = {.code = "accepted"};
  char hex[4096], name[128], wanted[1024], got[1024];
  unsigned char bytes[2048];
  if (!find_text(line, "hex", hex, sizeof hex) || !find_text(line, "name", name, sizeof name)) return;
  size_t length = from_hex(hex, bytes, sizeof bytes - 1);
  check(get_u32(bytes) == length - HEADER_BYTES, name, "length in the header");
  bool good = request_parse(&request, bytes[4], bytes + HEADER_BYTES, length - HEADER_BYTES, &failure);
  if (find_text(line, "refused", wanted, sizeof wanted)) {
    check(!good && !strcmp(failure.code, wanted), name, failure.code);
    return;
  }
  check(good, name, failure.message);
  request_describe(&request, got, sizeof got);
  check(find_text(line, "text", wanted, sizeof wanted) && !strcmp(got, wanted), name, got);
}

// Builds the named reply with the functions that the guest uses.
static void build_reply(struct reply *reply, const char *name) {
  if (!strcmp(name, "pong")) {
    reply_begin(reply, PONG);
    reply_number(reply, F_VERSION, 1);
    reply_text(reply, F_BUILD, "0123456789ab");
  } else if (!strcmp(name, "error")) {
    reply_begin(reply, ERROR);
    reply_text(reply, F_CODE, "path_not_found");
    reply_text(reply, F_MESSAGE, "/x: No such file or directory");
  } else if (!strcmp(name, "exit with a code")) {
    reply_begin(reply, EXIT);
    reply_number(reply, F_EXIT_CODE, 3);
    reply_number(reply, F_TIMED_OUT, 0);
    reply_number(reply, F_DURATION_US, 1234567);
  } else if (!strcmp(name, "exit out of memory")) {
    reply_begin(reply, EXIT);
    reply_number(reply, F_SIGNAL, 9);
    reply_number(reply, F_TIMED_OUT, 0);
    reply_number(reply, F_DURATION_US, 5);
    reply_number(reply, F_OUT_OF_MEMORY, 1);
  } else if (!strcmp(name, "meta")) {
    reply_begin(reply, META);
    reply_number(reply, F_SIZE, 5000000000);
    reply_number(reply, F_MODE, 420);
    reply_number(reply, F_MODIFIED_MS, 1700000000123);
    reply_number(reply, F_IS_DIR, 0);
  } else if (!strcmp(name, "change")) {
    reply_begin(reply, CHANGE);
    reply_text(reply, F_KIND, "moved");
    reply_text(reply, F_PATH, "/workspace/new");
    reply_text(reply, F_FROM, "/workspace/old");
    reply_number(reply, F_IS_DIR, 0);
  } else if (!strcmp(name, "ok")) {
    reply_begin(reply, OK);
  }
}

static void check_reply(const char *line) {
  struct reply reply = {.length = 0};
  char hex[4096], name[128];
  unsigned char bytes[2048];
  if (!find_text(line, "hex", hex, sizeof hex) || !find_text(line, "name", name, sizeof name)) return;
  size_t length = from_hex(hex, bytes, sizeof bytes);
  build_reply(&reply, name);
  if (reply.length == 0) return;
  put_u32(reply.bytes, (uint32_t)(reply.length - HEADER_BYTES));
  check(reply.length == length && !memcmp(reply.bytes, bytes, length), name, "other bytes");
}

static void for_each_line(const char *path, void (*visit)(const char *line)) {
  char line[16384];
  FILE *file = fopen(path, "r");
  check(file != NULL, path, "cannot be read");
  while (file && fgets(line, sizeof line, file)) visit(line);
  if (file) fclose(file);
}

// Returns a byte that depends on its offset, so that a reader can verify the offset of each byte.
static unsigned char byte_at(uint64_t offset) { return (unsigned char)(offset * 31 + (offset >> 8)); }

static void check_ring(uint32_t largest) {
  static unsigned char bytes[RECORD_LIMIT];
  struct ring ring = {0};
  struct ring_cursor cursor = {0};
  uint64_t at = 0, random = 88172645463325252ULL + largest;
  uint64_t total = largest < 100 ? 4 * 1024 * 1024 : 3ULL * RING_LIMIT;
  while (ring.written < total) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    uint32_t length = 1 + (uint32_t)(random % largest);
    for (uint32_t i = 0; i < length; i++) bytes[i] = byte_at(ring.written + i);
    ring_append(&ring, 1 + (random >> 40) % 2, bytes, length);
    // The reader falls behind, catches up, and falls behind again.
    for (int i = 0; (random >> 50) % 3 == 0 && i < 5; i++) {
      uint8_t stream;
      uint64_t before = at;
      uint32_t got = ring_read(&ring, &cursor, &at, &stream, bytes, 1 + (uint32_t)(random >> 20) % RECORD_LIMIT);
      bool good = (before == at || at == ring.dropped) && at + got <= ring.written;
      for (uint32_t j = 0; j < got; j++) good = good && bytes[j] == byte_at(at + j);
      if (!good) check(false, "ring", "returns other bytes than were written");
      at += got;
    }
  }
  check(ring.capacity <= RING_LIMIT, "ring", "uses too much memory");
  check(largest < 100 || ring.dropped > 0, "ring", "never wrapped");
  struct ring_cursor fresh = {0};
  uint64_t offset = 0;
  uint8_t stream;
  for (uint32_t got; (got = ring_read(&ring, &fresh, &offset, &stream, bytes, sizeof bytes)) > 0;) offset += got;
  check(offset == ring.written, "ring", "does not return the last bytes");
  ring_free(&ring);
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  for_each_line(arguments[1], check_request);
  for_each_line(arguments[2], check_reply);
  check_ring(3);
  check_ring(5000);
  check_ring(RECORD_LIMIT);
  printf("%d checks, %d failures\n", checks, failures);
  return failures > 0;
}
