import { expect, test } from "vitest";
import { Conversation, type ConversationMessage } from "./conversation.ts";

const MiB = 1024 ** 2;
const message = (kind: ConversationMessage["kind"], mebibytes: number): ConversationMessage => ({
  run_id: "run_1",
  kind,
  message: { role: "user", content: [] },
  bytes: mebibytes * MiB,
});

test("keeps the last 8 MiB of a conversation, and at least the messages since the last input", () => {
  const talk = new Conversation(3, [message("input", 2), message("answer", 3), message("input", 2)]);
  expect([talk.before, talk.said.length]).toEqual([3, 3]);
  talk.add([message("answer", 2)]);
  expect([talk.before, talk.said.map(({ bytes }) => bytes / MiB)]).toEqual([4, [3, 2, 2]]);
  talk.add([message("tools", 7)]);
  expect([talk.before, talk.said.map(({ kind }) => kind)]).toEqual([5, ["input", "answer", "tools"]]);
});
