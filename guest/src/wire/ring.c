#include "ring.h"

#include <stdlib.h>
#include <string.h>

#include "frame.h"

static void copy_in(struct ring *r, uint64_t position, const void *bytes, size_t length) {
  size_t at = position % r->capacity, first = r->capacity - at < length ? r->capacity - at : length;
  memcpy(r->bytes + at, bytes, first);
  memcpy(r->bytes, (const unsigned char *)bytes + first, length - first);
}

static void copy_out(const struct ring *r, uint64_t position, void *bytes, size_t length) {
  size_t at = position % r->capacity, first = r->capacity - at < length ? r->capacity - at : length;
  memcpy(bytes, r->bytes + at, first);
  memcpy((unsigned char *)bytes + first, r->bytes, length - first);
}

static uint32_t record_length(const struct ring *r, uint64_t position, uint8_t *stream) {
  unsigned char header[RECORD_HEADER];
  copy_out(r, position, header, sizeof header);
  *stream = header[4];
  return get_u32(header);
}

static void put_record_header(struct ring *r, uint64_t position, uint32_t length, uint8_t stream) {
  unsigned char header[RECORD_HEADER];
  put_header(header, length, stream);
  copy_in(r, position, header, sizeof header);
}

// Makes room for a record: grows the ring, or drops the oldest records. A growing ring has dropped nothing, so its
// records lie at its start, and realloc keeps them there.
static void make_room(struct ring *r, size_t needed) {
  uint8_t stream;
  while (r->head - r->tail + needed > r->capacity && r->capacity < RING_LIMIT && r->tail == 0) {
    size_t capacity = r->capacity ? r->capacity * 2 : RING_LEAST;
    unsigned char *bytes = realloc(r->bytes, capacity);
    if (!bytes) break;
    r->bytes = bytes;
    r->capacity = capacity;
  }
  while (r->capacity && r->head - r->tail + needed > r->capacity) {
    uint32_t length = record_length(r, r->tail, &stream);
    r->tail += RECORD_HEADER + length;
    r->dropped += length;
  }
}

void ring_append(struct ring *r, uint8_t stream, const unsigned char *bytes, uint32_t length) {
  make_room(r, RECORD_HEADER + (size_t)length);
  r->written += length;
  if (!r->capacity) { // the first block could not be allocated
    r->dropped = r->written;
    return;
  }
  uint8_t newest_stream = 0;
  uint32_t before = r->head > r->tail ? record_length(r, r->newest, &newest_stream) : 0;
  if (newest_stream == stream && before + length <= RECORD_LIMIT) {
    put_record_header(r, r->newest, before + length, stream);
  } else {
    r->newest = r->head;
    put_record_header(r, r->head, length, stream);
    r->head += RECORD_HEADER;
  }
  copy_in(r, r->head, bytes, length);
  r->head += length;
}

uint32_t ring_read(const struct ring *r, struct ring_cursor *cursor, uint64_t *offset, uint8_t *stream,
                   unsigned char *bytes, uint32_t limit) {
  if (cursor->position <= r->tail || *offset < cursor->offset) {
    cursor->position = r->tail;
    cursor->offset = r->dropped;
  }
  if (*offset < r->dropped) *offset = r->dropped;
  while (cursor->position < r->head) {
    uint32_t length = record_length(r, cursor->position, stream);
    uint64_t skip = *offset - cursor->offset;
    if (skip < length) {
      uint32_t count = length - (uint32_t)skip < limit ? length - (uint32_t)skip : limit;
      copy_out(r, cursor->position + RECORD_HEADER + skip, bytes, count);
      return count;
    }
    // The newest record may still grow, so the reader stays on it.
    if (cursor->position == r->newest) return 0;
    cursor->position += RECORD_HEADER + length;
    cursor->offset += length;
  }
  return 0;
}

void ring_free(struct ring *r) { free(r->bytes); }
