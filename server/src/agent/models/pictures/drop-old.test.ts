import { expect, test } from "vitest";
import { stepPictures } from "../../tools/pictures.ts";
import { estimateTokens, type Message, picturesIn, toolMessage } from "../messages.ts";
import { dropOldPictures } from "./drop-old.ts";

const toolPicture = (characters = 8) => {
  const data = { type: "data" as const, data: "A".repeat(characters) };
  const content = [{ type: "file" as const, mediaType: "image/png", data }];
  const message = toolMessage([{ id: "call_1", tool: "look", isOk: true, text: "seen", content }]);
  return { message: message as unknown, bytes: JSON.stringify(message).length };
};
const counts = (messages: { message: unknown }[]) =>
  messages.map(({ message }) => picturesIn(message as Message).length);

test("keeps all of twenty pictures, but only the newest ten of twenty-one", () => {
  const messages = Array.from({ length: 20 }, () => toolPicture());
  dropOldPictures(messages);
  expect(counts(messages)).toEqual(Array(20).fill(1));
  messages.push(toolPicture());
  const before = messages.map(({ bytes }) => bytes);
  dropOldPictures(messages);
  expect(counts(messages)).toEqual([...Array(11).fill(0), ...Array(10).fill(1)]);
  expect(JSON.stringify(messages[0]!.message)).toContain(
    "[image of type image/png, 6 bytes, left out: too old]",
  );
  expect(messages.at(-1)!.bytes).toBe(before.at(-1));
});

test("keeps the pictures of the last results, whatever their size", () => {
  const large = () => toolPicture(stepPictures.bytes);
  const messages = [large(), large()];
  dropOldPictures(messages);
  expect(counts(messages)).toEqual([0, 1]);
  expect(messages[0]!.bytes).toBeLessThan(1000);
});

test("estimates the tokens of a large tool picture at the size to which providers scale it", () => {
  const tokens = (characters: number) => estimateTokens(toolPicture(characters).message as Message);
  expect(tokens(stepPictures.bytes)).toBe(tokens(128_000));
  expect(tokens(64_000)).toBeLessThan(tokens(128_000));
});
