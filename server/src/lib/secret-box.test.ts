import { randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { SealedValueError, SecretBox } from "./secret-box.ts";

const key = randomBytes(32);
const box = new SecretBox(key);

test("opens sealed text and bytes with the `aad` of their storage place", () => {
  expect(box.open(box.seal("grüße", "users:1:note"), "users:1:note").toString()).toBe("grüße");
  const bytes = randomBytes(1000);
  expect(box.open(box.seal(bytes, "a"), "a")).toEqual(bytes);
  expect(box.open(box.seal("", "a"), "a")).toHaveLength(0);
});

test("seals the same text to two different values that do not contain it", () => {
  const first = box.seal("secret-canary", "a");
  expect(first).not.toEqual(box.seal("secret-canary", "a"));
  expect(first.toString("latin1")).not.toContain("canary");
});

test("does not open a sealed value that was copied to another place", () => {
  expect(() => box.open(box.seal("x", "users:1:note"), "users:2:note")).toThrow(SealedValueError);
});

test("detects a change of any single byte", () => {
  const sealed = box.seal("hello", "a");
  for (let at = 0; at < sealed.length; at += 1) {
    const changed = Buffer.from(sealed);
    changed[at] = changed[at]! ^ 1;
    expect(() => box.open(changed, "a"), `byte ${at}`).toThrow(SealedValueError);
  }
  for (let length = 0; length < sealed.length; length += 1) {
    expect(() => box.open(sealed.subarray(0, length), "a"), `${length} bytes`).toThrow(SealedValueError);
  }
});

test("reports a wrong key as a wrong key", () => {
  expect(() => new SecretBox(randomBytes(32)).open(box.seal("x", "a"), "a")).toThrow("another key");
  expect(() => new SecretBox(randomBytes(16))).toThrow("32 bytes");
});

test("derives the same key each time, and a different key for each purpose and master key", () => {
  const key = randomBytes(32);
  const one = new SecretBox(key).derive("urls");
  expect(one.length).toBe(32);
  expect(one.equals(key)).toBe(false);
  expect(new SecretBox(key).derive("urls").equals(one)).toBe(true);
  expect(new SecretBox(key).derive("mail").equals(one)).toBe(false);
  expect(new SecretBox(randomBytes(32)).derive("urls").equals(one)).toBe(false);
});

test("signs different lists of fields differently, even if fields hold separators", () => {
  const box = new SecretBox(randomBytes(32));
  const lists: (string | number)[][] = [
    ["GET", "a", "b"],
    ["GET", "a\nb"],
    ["GET", 'a","b'],
    ["GET", 'a\\","b'],
    ["GET", "a", "b", ""],
    ["GET,a", "b"],
    ["GET", "a", 1],
    ["GET", "a", "1"],
    ["GET", "a1"],
    ["GET", "\ud800"],
    ["GET", "\ud801"],
    ["GET", "\ufffd"],
  ];
  const signatures = lists.map((fields) => box.sign("urls", fields));
  expect(new Set(signatures).size).toBe(lists.length);
  for (const [index, fields] of lists.entries()) {
    const valid = signatures.filter((signature) => box.verify("urls", fields, signature));
    expect(valid).toEqual([signatures[index]]);
    expect(box.verify("mail", fields, signatures[index] ?? "")).toBe(false);
  }
});
