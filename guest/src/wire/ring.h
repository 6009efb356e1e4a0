// Output of a background command: the last 16 MiB, in records of one stream each, addressed by byte offsets.
//
// Offsets count every byte that the command wrote to both streams, so a reader sees how much was dropped.
// Memory grows with the output. At RING_LIMIT, a new record replaces the oldest ones.
#ifndef KONTOR_RING_H
#define KONTOR_RING_H

#include <stddef.h>
#include <stdint.h>

enum { RING_LIMIT = 16 * 1024 * 1024, RING_LEAST = 256 * 1024, RECORD_LIMIT = 64 * 1024, RECORD_HEADER = 5 };

struct ring {
  unsigned char *bytes;
  size_t capacity;
  uint64_t head, tail, newest; // positions, never decreasing; the index of each is its value modulo `capacity`
  uint64_t written, dropped;   // offsets of the end of the output, and of the first kept byte
};

// Position of a reader: a record, and the offset of the record's first byte. A cursor of zeros is at the start.
struct ring_cursor {
  uint64_t position, offset;
};

// Appends a record. `length` is at most RECORD_LIMIT.
void ring_append(struct ring *ring, uint8_t stream, const unsigned char *bytes, uint32_t length);
// Copies up to `limit` bytes of one stream, from `*offset` on. Returns 0 if none are available yet. Moves
// `*offset` to the first copied byte, which is later if the bytes in between were dropped.
uint32_t ring_read(const struct ring *ring, struct ring_cursor *cursor, uint64_t *offset, uint8_t *stream,
                   unsigned char *bytes, uint32_t limit);
void ring_free(struct ring *ring);

#endif
