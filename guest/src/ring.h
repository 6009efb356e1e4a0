// The output of a background command: its last 16 MiB, in records of one stream each, addressed by byte offsets.
//
// Offsets count every byte the command ever wrote, both streams together, so a reader sees what was dropped before
// it came. Memory grows with what is written; only at RING_LIMIT does the oldest record make room for the newest.
#ifndef KONTOR_RING_H
#define KONTOR_RING_H

#include <stddef.h>
#include <stdint.h>

enum { RING_LIMIT = 16 * 1024 * 1024, RING_LEAST = 256 * 1024, RECORD_LIMIT = 64 * 1024, RECORD_HEADER = 5 };

struct ring {
  unsigned char *bytes;
  size_t capacity;
  uint64_t head, tail, newest; // positions, ever rising; a position's place is its rest modulo capacity
  uint64_t written, dropped;   // offsets
};

// Where a reader stands: a record, and the offset of the record's first byte. All zero is the beginning.
struct ring_cursor {
  uint64_t position, offset;
};

// `length` at most RECORD_LIMIT.
void ring_append(struct ring *ring, uint8_t stream, const unsigned char *bytes, uint32_t length);
// Copies output from `*offset` on, of one stream, at most `limit` bytes; 0 where there is none yet. Moves `*offset`
// forward to where the copied bytes begin, which is later than asked where the bytes in between were dropped.
uint32_t ring_read(const struct ring *ring, struct ring_cursor *cursor, uint64_t *offset, uint8_t *stream,
                   unsigned char *bytes, uint32_t limit);
void ring_free(struct ring *ring);

#endif
