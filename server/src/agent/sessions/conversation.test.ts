import { expect, test } from "vitest";
import { Conversation, type Said } from "./conversation.ts";

const MiB = 1024 ** 2;
const said = (kind: Said["kind"], mebibytes: number): Said => ({
  run_id: "run_1",
  kind,
  message: { role: "user", content: [] },
  bytes: mebibytes * MiB,
});

test("keeps the last eight mebibytes of a conversation, and at least the messages since the last input", () => {
  const talk = new Conversation(3, [said("input", 2), said("answer", 3), said("input", 2)]);
  expect([talk.before, talk.said.length]).toEqual([3, 3]);
  talk.add([said("answer", 2)]);
  expect([talk.before, talk.said.map(({ bytes }) => bytes / MiB)]).toEqual([4, [3, 2, 2]]);
  talk.add([said("tools", 7)]);
  expect([talk.before, talk.said.map(({ kind }) => kind)]).toEqual([5, ["input", "answer", "tools"]]);
});
