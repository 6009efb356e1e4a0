// Reads the golden vectors in C: JSON with one vector per line, and without escapes in the fields that are
// read.
#ifndef KONTOR_VECTORS_FILE_H
#define KONTOR_VECTORS_FILE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Copies the text of `"name": "..."` out of a line. Returns false if the line has no such name.
static inline int find_text(const char *line, const char *name, char *text, size_t size) {
  char key[64];
  snprintf(key, sizeof key, "\"%s\": \"", name);
  const char *at = strstr(line, key);
  if (!at) return 0;
  at += strlen(key);
  size_t length = strcspn(at, "\"");
  if (length >= size) return 0;
  memcpy(text, at, length);
  text[length] = 0;
  return 1;
}

static inline size_t from_hex(const char *text, unsigned char *bytes, size_t size) {
  size_t length = 0;
  for (unsigned value; length < size && sscanf(text + 2 * length, "%2x", &value) == 1;)
    bytes[length++] = (unsigned char)value;
  return length;
}

#endif
