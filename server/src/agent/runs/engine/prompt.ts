/**
 * Builds the prompt of a step: the system text with pinned facts, the remembered facts, the summary of older messages,
 * and the conversation. Stored messages never change. Beyond the config's `compact_at_tokens`, the model gets only the
 * last messages, starting with a user's question.
 */
import type { AgentConfig } from "#agent/agents/config.ts";
import { toolCallsIn, estimateTokens, type Message, revive, toolMessage } from "#agent/models/messages.ts";
import { type PromptMessage, shrink, sizeOf } from "./shrink.ts";

export interface Prompt {
  messages: Message[];
  /** Number of omitted messages that no summary covers. */
  leftOut: number;
  /** Estimated tokens of the conversation's messages. */
  tokens: number;
}

/** The last summary. `through` is the sequence number of the last message that the summary covers. */
export interface Summary {
  message: Message;
  through: number;
}

export interface PromptOptions {
  /** Number of earlier messages, which are never sent. */
  before: number;
  summary?: Summary | undefined;
  remembered: string | undefined;
  /** Maximum tokens of the conversation, if a model rejected a longer conversation. Undefined otherwise. */
  atMost: number | undefined;
}

type StoredMessage = { kind: string; message: unknown };

/** A message of the conversation with its sequence number. */
export interface Entry extends PromptMessage {
  seq: number;
}

/** Returns the messages that the summary does not cover. */
export function entriesOf(
  conversation: readonly StoredMessage[],
  { before, summary }: Pick<PromptOptions, "before" | "summary">,
): Entry[] {
  return conversation.flatMap(({ kind, message }, index) => {
    const seq = before + index + 1;
    if (kind === "summary" || seq <= (summary?.through ?? 0)) return [];
    const isQuestion = kind !== "repair" && (message as Message).role === "user";
    return [{ seq, message: message as Message, isQuestion }];
  });
}

export function promptOf(
  config: AgentConfig,
  conversation: readonly StoredMessage[],
  { before, summary, remembered, atMost }: PromptOptions,
): Prompt {
  // Facts change more often than the config. In a separate message, they do not invalidate the provider's cache of the
  // first system message.
  const system = [systemOf(config), remembered].flatMap((content): Message[] =>
    content === undefined ? [] : [{ role: "system", content }],
  );
  const all = entriesOf(conversation, { before, summary });
  const uncovered = Math.max(0, before - (summary?.through ?? 0));
  const from = firstSent(config, all, uncovered > 0);
  const whole = withResults(all.slice(from));
  const told = atMost === undefined || sizeOf(whole) <= atMost ? whole : shrink(whole, atMost);
  return {
    messages: [
      ...system,
      ...(summary ? [{ role: summary.message.role, content: summary.message.content } as Message] : []),
      ...told.map(({ message }) => revive(message)),
    ],
    leftOut: uncovered + from + (whole.length - told.length),
    tokens: sizeOf(told),
  };
}

function systemOf({ system, context }: AgentConfig): string | undefined {
  const pinned = context.pin ?? [];
  if (pinned.length === 0) return system;
  const facts = `Pinned facts:\n${pinned.map((fact) => `- ${fact}`).join("\n")}`;
  return system === undefined ? facts : `${system}\n\n${facts}`;
}

/** Adds a result for each call without a result. An interrupted run leaves such calls, which providers reject. */
function withResults(conversation: readonly PromptMessage[]): PromptMessage[] {
  return conversation.flatMap((said, index) => {
    const asked = toolCallsIn(said.message);
    if (asked.length === 0 || conversation[index + 1]?.message.role === "tool") return [said];
    const text = "The run ended before an outcome was known.";
    const message = toolMessage(asked.map((call) => ({ ...call, isOk: false, text })));
    return [said, { message, isQuestion: false }];
  });
}

function firstSent({ context }: AgentConfig, conversation: readonly PromptMessage[], isCut: boolean): number {
  if (!isCut && sizeOf(conversation) <= context.compact_at_tokens) return 0;
  return firstKept(context, conversation);
}

/**
 * Returns the index of the first message that compaction keeps: a question. With summaries, the kept messages take at
 * most half of `compact_at_tokens` if possible, so that not every run needs a new summary.
 */
export function firstKept(context: AgentConfig["context"], conversation: readonly PromptMessage[]): number {
  const from = Math.max(0, conversation.length - context.keep_last_messages);
  const atMost = context.compaction === "summarize" ? context.compact_at_tokens / 2 : Infinity;
  let tokens = 0;
  let question = -1;
  for (let index = conversation.length - 1; index >= from; index -= 1) {
    tokens += estimateTokens(conversation[index]!.message);
    if (tokens > atMost) break;
    if (conversation[index]!.isQuestion) question = index;
  }
  // A long run with many tool calls keeps its messages from its own question on. A call and its result stay together.
  return question === -1
    ? Math.max(
        0,
        conversation.findLastIndex(({ isQuestion }) => isQuestion),
      )
    : question;
}
