import fc from "fast-check";
import { expect, test } from "vitest";
import { readQuestion, TYPE_A, writeResponse, writeError, type Question } from "./dns-message.ts";

function ask(name: string, type = TYPE_A, more = ""): Buffer {
  const labels = name
    .split(".")
    .map((label) => Buffer.concat([Buffer.from([label.length]), Buffer.from(label)]));
  const end = Buffer.from([0, type >> 8, type & 255, 0, 1]);
  return Buffer.concat([
    Buffer.from("123401000001000000000000", "hex"),
    ...labels,
    end,
    Buffer.from(more, "hex"),
  ]);
}

test("reads name in lower case, type and id of a query, and ignores the rest", () => {
  // With an EDNS record, as in queries of glibc and dig.
  expect(readQuestion(ask("WEB.Test", 28, "0000290200000000000000"))).toMatchObject({
    id: 0x1234,
    name: "web.test",
    type: 28,
  });
});

test("repeats the question in the response, with the addresses", () => {
  const question = readQuestion(ask("web.test")) as Question;
  expect(writeResponse(question, "ok", ["198.51.100.1"]).toString("hex")).toBe(
    `12348180000100010000000003776562047465737400${"00010001"}c00c000100010000001e0004c6336401`,
  );
  expect(writeResponse(question, "refused").toString("hex")).toBe(
    "12348185000100000000000003776562047465737400" + "00010001",
  );
});

test("keeps every response within a datagram that each resolver accepts, however many addresses a name has", () => {
  const longest = `${"a".repeat(63)}.`.repeat(3) + "b".repeat(61);
  const question = readQuestion(ask(longest)) as Question;
  expect(question.name).toBe(longest);
  expect(
    writeResponse(
      question,
      "ok",
      Array.from({ length: 100 }, () => "198.51.100.1"),
    ).length,
  ).toBeLessThanOrEqual(512);
});

test("ignores responses, and returns an error for an unsupported query", () => {
  const answer = ask("web.test");
  answer[2] = 0x81;
  expect(readQuestion(answer)).toBeNull();
  expect(readQuestion(Buffer.alloc(11))).toBeNull();
  const update = ask("web.test");
  update[2] = 0x28;
  expect(readQuestion(update)).toBe("notImplemented");
  const two = ask("web.test");
  two[5] = 2;
  expect(readQuestion(two)).toBe("malformed");
  expect(readQuestion(Buffer.concat([ask("x").subarray(0, 12), Buffer.from("c00c00010001", "hex")]))).toBe(
    "malformed",
  );
  const chaos = ask("version.bind");
  chaos[chaos.length - 1] = 3;
  expect(readQuestion(chaos)).toBe("refused");
  expect(writeError(two, "malformed").toString("hex")).toBe("123481810000000000000000");
});

test("rejects a label that contains a dot", () => {
  const sly = Buffer.concat([
    ask("x").subarray(0, 12),
    Buffer.from([8]),
    Buffer.from("web.test"),
    Buffer.from([0, 0, 1, 0, 1]),
  ]);
  expect(readQuestion(sly)).toMatchObject({ name: "" });
});

test("never throws on random bytes", () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
      const framed = Buffer.concat([Buffer.from("123401000001000000000000", "hex"), bytes]);
      return [Buffer.from(bytes), framed].every((message) => readQuestion(message) !== undefined);
    }),
  );
});
