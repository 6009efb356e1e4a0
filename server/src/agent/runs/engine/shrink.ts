/**
 * Shortens a conversation for a model that rejected it as too long. The last question stays, with the newest messages
 * before and after it that fit. A call and its result stay together. If a single result is too long, its middle is
 * removed.
 */
import { toolCallsIn, contentOf, estimateTokens, type Message } from "#agent/models/messages.ts";
import { withoutPictures } from "#agent/tools/pictures.ts";

export interface PromptMessage {
  message: Message;
  /** True for a user's message, false for a request to repair an answer. */
  isQuestion: boolean;
}

/** Numbers of characters that a cut result may keep. The first number with which the conversation fits is used. */
const resultCharacters = [16_000, 4_000, 1_000];

export function sizeOf(said: readonly PromptMessage[]): number {
  return said.reduce((sum, { message }) => sum + estimateTokens(message), 0);
}

/** Shortens the conversation to at most `atMost` tokens, if possible. */
export function shrink(said: readonly PromptMessage[], atMost: number): PromptMessage[] {
  const kept = leaveOut(said, atMost);
  if (sizeOf(kept) <= atMost) return kept;
  let cut = kept;
  for (const characters of resultCharacters) {
    cut = kept.map((one) => ({ ...one, message: cutResults(one.message, characters) }));
    if (sizeOf(cut) <= atMost) break;
  }
  return cut;
}

function leaveOut(said: readonly PromptMessage[], atMost: number): PromptMessage[] {
  const asked = said.findLastIndex(({ isQuestion }) => isQuestion);
  const question = said.slice(Math.max(0, asked), asked + 1);
  let left = atMost - sizeOf(question);
  const came = unitsOf(said.slice(asked + 1));
  let from = came.length;
  for (; from > 0; from -= 1) {
    const size = sizeOf(came[from - 1]!);
    // The newest group always stays, because the model needs it to continue.
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

/** Groups a message that has tool calls with the results of these calls. Any other message forms its own group. */
function unitsOf(said: readonly PromptMessage[]): PromptMessage[][] {
  const units: PromptMessage[][] = [];
  for (const one of said) {
    const last = units.at(-1);
    if (one.message.role === "tool" && toolCallsIn(last?.[0]?.message).length > 0) last!.push(one);
    else units.push([one]);
  }
  return units;
}

function cutResults(message: Message, characters: number): Message {
  if (message.role !== "tool") return message;
  const content = message.content.map((part) => {
    if (part.type !== "tool-result") return part;
    const content = contentOf(part);
    // A result with pictures is reduced to its text.
    const output = content ? { type: "text" as const, value: withoutPictures(content) } : part.output;
    if (output.type !== "text" && output.type !== "error-text") return part;
    if (output.value.length <= characters) return { ...part, output };
    const half = characters / 2;
    const value = `${output.value.slice(0, half)}\n[… left out …]\n${output.value.slice(-half)}`;
    return { ...part, output: { ...output, value: value.toWellFormed() } };
  });
  return { ...message, content };
}
