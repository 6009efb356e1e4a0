import { expect, test } from "vitest";
import { answerInternal, parseQuestion } from "./questions.ts";

/** Returns a query for a record of this type of the name. */
function query(name: string, type = 1): Buffer {
  const labels = name.split(".").flatMap((label) => [Buffer.from([label.length]), Buffer.from(label)]);
  const header = Buffer.from("abcd01000001000000000000", "hex");
  return Buffer.concat([header, ...labels, Buffer.from([0, 0, type, 0, 1])]);
}
const answerTo = (message: Buffer, address?: string) => {
  const question = parseQuestion(message);
  if (question === undefined) throw new Error("no question");
  return answerInternal(message, question, address);
};

test("parses a question's name in lower case, and detects names below .internal", () => {
  expect(parseQuestion(query("Db.Shop.INTERNAL"))).toMatchObject({
    name: "db.shop.internal",
    isInternal: true,
  });
  expect(parseQuestion(query("internal"))).toMatchObject({ isInternal: true });
  for (const name of ["internal.test", "xinternal", "a.internals"]) {
    expect(parseQuestion(query(name))).toMatchObject({ isInternal: false });
  }
});

test("returns no record for another type, without reporting the name as unknown", () => {
  const aaaa = answerTo(query("db.internal", 28), "198.19.0.1");
  expect(aaaa.subarray(2, 8).toString("hex")).toBe("858000010000");
  expect(aaaa.length).toBe(query("db.internal").length);
});

test("does not send back the records that follow a question", () => {
  const withOptions = Buffer.concat([query("db.internal"), Buffer.from("0000291000000000000000", "hex")]);
  withOptions.writeUInt16BE(1, 10);
  expect(answerTo(withOptions, "198.19.0.1")).toEqual(answerTo(query("db.internal"), "198.19.0.1"));
});

test("does not read past the end of a truncated or false message", () => {
  const whole = query("db.shop.internal");
  for (let length = 0; length < whole.length; length += 1) {
    expect(parseQuestion(whole.subarray(0, length))).toBeUndefined();
  }
  expect(parseQuestion(query(Array.from({ length: 130 }, () => "a").join(".")))).toBeUndefined();
  const answer = Buffer.from(whole).fill(0x80, 2, 3);
  expect(parseQuestion(answer)).toBeUndefined();
});
