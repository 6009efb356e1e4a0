/**
 * A conversation made shorter for a model that refused it as too long: the last question stays, and of what came
 * before it and of what came of it the newest that fits. A call and its result are one. Where one result alone is too
 * long its middle goes.
 */
import { askedIn, contentOf, estimateTokens, type Message } from "#agent/models/messages.ts";
import { withoutPictures } from "#agent/tools/pictures.ts";

export interface Said {
  message: Message;
  /** Somebody asked it; a repair is not one. */
  isQuestion: boolean;
}

/** Results that are cut keep so many characters; the first that is short enough counts. */
const resultCharacters = [16_000, 4_000, 1_000];

export function sizeOf(said: readonly Said[]): number {
  return said.reduce((sum, { message }) => sum + estimateTokens(message), 0);
}

/** Down to so many tokens where that can be. */
export function shrink(said: readonly Said[], atMost: number): Said[] {
  const kept = leaveOut(said, atMost);
  if (sizeOf(kept) <= atMost) return kept;
  let cut = kept;
  for (const characters of resultCharacters) {
    cut = kept.map((one) => ({ ...one, message: cutResults(one.message, characters) }));
    if (sizeOf(cut) <= atMost) break;
  }
  return cut;
}

function leaveOut(said: readonly Said[], atMost: number): Said[] {
  const asked = said.findLastIndex(({ isQuestion }) => isQuestion);
  const question = said.slice(Math.max(0, asked), asked + 1);
  let left = atMost - sizeOf(question);
  const came = unitsOf(said.slice(asked + 1));
  let from = came.length;
  for (; from > 0; from -= 1) {
    const size = sizeOf(came[from - 1]!);
    // The newest is what the model has to go on with.
    if (size > left && from < came.length) break;
    left -= size;
  }
  const after = came.slice(from).flat();
  if (from > 0 || asked <= 0) return [...question, ...after];
  let earlier = asked;
  for (let index = asked - 1; index >= 0; index -= 1) {
    left -= estimateTokens(said[index]!.message);
    if (left < 0) break;
    if (said[index]!.isQuestion) earlier = index;
  }
  return [...said.slice(earlier, asked), ...question, ...after];
}

/** A message that asks for calls, with what came of them; or one by itself. */
function unitsOf(said: readonly Said[]): Said[][] {
  const units: Said[][] = [];
  for (const one of said) {
    const last = units.at(-1);
    if (one.message.role === "tool" && askedIn(last?.[0]?.message).length > 0) last!.push(one);
    else units.push([one]);
  }
  return units;
}

function cutResults(message: Message, characters: number): Message {
  if (message.role !== "tool") return message;
  const content = message.content.map((part) => {
    if (part.type !== "tool-result") return part;
    const content = contentOf(part);
    // A picture that has to be cut is left out.
    const output = content ? { type: "text" as const, value: withoutPictures(content) } : part.output;
    if (output.type !== "text" && output.type !== "error-text") return part;
    if (output.value.length <= characters) return { ...part, output };
    const half = characters / 2;
    const value = `${output.value.slice(0, half)}\n[… left out …]\n${output.value.slice(-half)}`;
    return { ...part, output: { ...output, value: value.toWellFormed() } };
  });
  return { ...message, content };
}
