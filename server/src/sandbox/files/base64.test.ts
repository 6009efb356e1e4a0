import fc from "fast-check";
import { expect, test } from "vitest";
import { decode, sizeOfDecoded } from "./base64.ts";

test("decodes every byte sequence, padded, unpadded, or with wrapped lines", () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 400 }), (bytes) => {
      const text = Buffer.from(bytes).toString("base64");
      const wrapped = text.replaceAll(/.{76}/g, "$&\n");
      for (const form of [text, text.replaceAll("=", ""), wrapped, `${text}\r\n`]) {
        expect(decode(form, "content").equals(Buffer.from(bytes))).toBe(true);
      }
    }),
  );
});

test("rejects invalid base64 with the name of the field, and loses no bytes", () => {
  for (const bad of ["a", "ab$d", "äbcd", "abcde", "ab=c", "{}", "YWJj YWJj"]) {
    expect(() => decode(bad, "content")).toThrow(/^content: is not valid base64/);
  }
});

test("counts the decoded bytes of padded, unpadded and wrapped text", () => {
  for (const size of [0, 1, 2, 3, 100]) {
    const text = Buffer.alloc(size, 7).toString("base64");
    const wrapped = text.replaceAll(/(.{4})/g, "$1\r\n");
    for (const form of [text, text.replaceAll("=", ""), wrapped]) expect(sizeOfDecoded(form)).toBe(size);
  }
});
