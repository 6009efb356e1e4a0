import { expect, test } from "vitest";
import type { Message } from "#agent/models/messages.ts";
import { type PromptMessage, shrink, sizeOf } from "./shrink.ts";

const long = "x".repeat(4000);
const question = (text: string): PromptMessage => ({
  message: { role: "user", content: [{ type: "text", text }] },
  isQuestion: true,
});
const answer = (text: string): PromptMessage => ({
  message: { role: "assistant", content: [{ type: "text", text }] },
  isQuestion: false,
});
const call = (id: string): PromptMessage => ({
  message: {
    role: "assistant",
    content: [{ type: "tool-call", toolCallId: id, toolName: "look", input: {} }],
  },
  isQuestion: false,
});
const result = (id: string, value: string): PromptMessage => ({
  message: {
    role: "tool",
    content: [{ type: "tool-result", toolCallId: id, toolName: "look", output: { type: "text", value } }],
  } as Message,
  isQuestion: false,
});

test("keeps the last question with its answers, and drops each earlier question together with its answers", () => {
  const said = [question(long), answer(long), question("two"), answer("b"), question("three"), call("1")];
  expect(shrink(said, 300)).toEqual(said.slice(2));
  expect(shrink(said, 45)).toEqual(said.slice(4));
});

test("keeps the newest calls of a long run, each with its result", () => {
  const calls = ["1", "2", "3", "4"].flatMap((id) => [call(id), result(id, long)]);
  const said = [question("one"), answer("a"), question("two"), ...calls];
  expect(shrink(said, 2300)).toEqual([said[2], ...calls.slice(4)]);
});

test("cuts the middle of a single long result", () => {
  const said = [question("one"), call("1"), result("1", `begin${"x".repeat(100_000)}end`)];
  const short = shrink(said, 2000);
  expect(short).toHaveLength(3);
  expect(sizeOf(short)).toBeLessThanOrEqual(2000);
  expect(JSON.stringify(short[2])).toMatch(/"begin.*left out.*end"/);
});

test("keeps the last question whole, whatever its length", () => {
  const said = [question("one"), answer("a"), question("x".repeat(10_000))];
  expect(shrink(said, 100)).toEqual([said[2]]);
  expect(shrink([], 100)).toEqual([]);
});
