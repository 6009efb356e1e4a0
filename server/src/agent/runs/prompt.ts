/**
 * What a model is told: the system's words, what is remembered, and the conversation. The log is never edited; where
 * it has outgrown the config's `compact_at_tokens` the model gets its last messages alone, beginning with somebody's
 * question.
 */
import type { AgentConfig } from "../agents/config.ts";
import { askedIn, type Message, revive, toolMessage } from "../models/messages.ts";
import { type Said, shrink, sizeOf } from "./shrink.ts";

export interface Prompt {
  messages: Message[];
  /** How many of the conversation are left out. */
  leftOut: number;
  /** Of what is told of the conversation, estimated. */
  tokens: number;
}

export interface Telling {
  /** How many messages were said before these and are not told in any case. */
  before: number;
  remembered: string | undefined;
  /** Of the conversation: a model refused more. */
  atMost: number | undefined;
}

export function promptOf(
  config: AgentConfig,
  conversation: readonly { kind: string; message: unknown }[],
  { before, remembered, atMost }: Telling,
): Prompt {
  const words = [config.system, remembered].filter((text) => text !== undefined);
  const system: Message[] = words.length === 0 ? [] : [{ role: "system", content: words.join("\n\n") }];
  const all = conversation.map(({ kind, message }) => ({
    message: message as Message,
    isQuestion: kind !== "repair" && (message as Message).role === "user",
  }));
  const from = firstTold(config, all, before > 0);
  const whole = withResults(all.slice(from));
  const told = atMost === undefined || sizeOf(whole) <= atMost ? whole : shrink(whole, atMost);
  return {
    messages: [...system, ...told.map(({ message }) => revive(message))],
    leftOut: before + from + (whole.length - told.length),
    tokens: sizeOf(told),
  };
}

/** A run that was cut off left calls without results, and providers take no call without one. */
function withResults(conversation: readonly Said[]): Said[] {
  return conversation.flatMap((said, index) => {
    const asked = askedIn(said.message);
    if (asked.length === 0 || conversation[index + 1]?.message.role === "tool") return [said];
    const text = "The run ended before an outcome was known.";
    const message = toolMessage(asked.map((call) => ({ ...call, isOk: false, text })));
    return [said, { message, isQuestion: false }];
  });
}

function firstTold({ context }: AgentConfig, conversation: readonly Said[], isCut: boolean): number {
  if (!isCut && sizeOf(conversation) <= context.compact_at_tokens) return 0;
  const from = Math.max(0, conversation.length - context.keep_last_messages);
  const question = conversation.findIndex(({ isQuestion }, index) => index >= from && isQuestion);
  // A long run of tools: from its own question on. A call and its result are never parted.
  return question === -1
    ? Math.max(
        0,
        conversation.findLastIndex(({ isQuestion }) => isQuestion),
      )
    : question;
}
