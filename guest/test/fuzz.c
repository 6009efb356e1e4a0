// fuzz REQUESTS: sends damaged vectors and random bytes through the request decoder, under the sanitizers.
// The sequence is fixed, so that a failure is reproducible. Each payload has a block of its exact size, so
// that an overrun is detected.
#include <stdint.h>

#include "frame.h"
#include "vectors_file.h"

enum { ROUNDS = 200000, SEED_LIMIT = 64, LENGTH_LIMIT = 600 };

static uint64_t state = 0x9e3779b97f4a7c15ULL;

static uint32_t random_below(uint32_t limit) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (uint32_t)(state >> 33) % limit;
}

static unsigned char seeds[SEED_LIMIT][LENGTH_LIMIT];
static size_t seed_lengths[SEED_LIMIT], seed_count;

static void read_seeds(const char *path) {
  char line[16384], hex[4096];
  FILE *file = fopen(path, "r");
  while (file && fgets(line, sizeof line, file) && seed_count < SEED_LIMIT)
    if (find_text(line, "hex", hex, sizeof hex))
      seed_lengths[seed_count] = from_hex(hex, seeds[seed_count], LENGTH_LIMIT), seed_count++;
  if (file) fclose(file);
}

static size_t make_payload(unsigned char *bytes) {
  size_t length = random_below(LENGTH_LIMIT);
  if (random_below(10) == 0) {
    for (size_t i = 0; i < length; i++) bytes[i] = (unsigned char)random_below(256);
    return length;
  }
  uint32_t seed = random_below((uint32_t)seed_count);
  length = seed_lengths[seed] - HEADER_BYTES;
  memcpy(bytes, seeds[seed] + HEADER_BYTES, length);
  for (uint32_t i = random_below(6); i > 0 && length > 0; i--)
    bytes[random_below((uint32_t)length)] = (unsigned char)(random_below(3) ? random_below(256) : 255);
  return length > 0 && random_below(4) == 0 ? random_below((uint32_t)length) : length;
}

int main(int count, char **arguments) {
  static struct request request;
  unsigned char bytes[LENGTH_LIMIT];
  char text[512];
  int accepted = 0;
  if (count != 2) return 2;
  read_seeds(arguments[1]);
  if (seed_count == 0) return 1;
  for (int round = 0; round < ROUNDS; round++) {
    struct failure failure;
    size_t length = make_payload(bytes);
    unsigned char *payload = malloc(length + 1);
    memcpy(payload, bytes, length);
    if (request_parse(&request, (uint8_t)random_below(256), payload, length, &failure)) {
      request_describe(&request, text, sizeof text);
      accepted++;
    } else if (!failure.code || !failure.message[0]) {
      return 1;
    }
    free(payload);
  }
  printf("%d rounds, %d accepted\n", ROUNDS, accepted);
  return 0;
}
