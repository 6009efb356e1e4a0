/**
 * Builds the prompt of a step: the system text with the pinned facts, remembered facts, the summary of older messages,
 * and the conversation. The log is never edited. Once it has outgrown the config's `compact_at_tokens`, the model gets
 * only the last messages, from a user's question on.
 */
import type { AgentConfig } from "#agent/agents/config.ts";
import { askedIn, estimateTokens, type Message, revive, toolMessage } from "#agent/models/messages.ts";
import { type Said, shrink, sizeOf } from "./shrink.ts";

export interface Prompt {
  messages: Message[];
  /** Number of messages that are left out and in no summary. */
  leftOut: number;
  /** Of what is told of the conversation, estimated. */
  tokens: number;
}

/** The last summary. `through`: sequence number of the last message that it covers. */
export interface Summary {
  message: Message;
  through: number;
}

export interface Telling {
  /** How many messages were said before these and are not told in any case. */
  before: number;
  summary?: Summary | undefined;
  remembered: string | undefined;
  /** Of the conversation: a model refused more. */
  atMost: number | undefined;
}

type Stored = { kind: string; message: unknown };

/** A message of the conversation with its sequence number. */
export interface Entry extends Said {
  seq: number;
}

/** Messages behind those that the summary covers. */
export function entriesOf(
  conversation: readonly Stored[],
  { before, summary }: Pick<Telling, "before" | "summary">,
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
  conversation: readonly Stored[],
  { before, summary, remembered, atMost }: Telling,
): Prompt {
  // Facts change more often than the config: a message of their own leaves the cached one before it as it is.
  const system = [systemOf(config), remembered].flatMap((content): Message[] =>
    content === undefined ? [] : [{ role: "system", content }],
  );
  const all = entriesOf(conversation, { before, summary });
  const uncovered = Math.max(0, before - (summary?.through ?? 0));
  const from = firstTold(config, all, uncovered > 0);
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
  return firstKept(context, conversation);
}

/**
 * Index of the first message that is kept when the conversation is compacted: a question. With summaries, the kept
 * messages take at most half of `compact_at_tokens` if they can, so that not every turn needs a new summary.
 */
export function firstKept(context: AgentConfig["context"], conversation: readonly Said[]): number {
  const from = Math.max(0, conversation.length - context.keep_last_messages);
  const atMost = context.compaction === "summarize" ? context.compact_at_tokens / 2 : Infinity;
  let tokens = 0;
  let question = -1;
  for (let index = conversation.length - 1; index >= from; index -= 1) {
    tokens += estimateTokens(conversation[index]!.message);
    if (tokens > atMost) break;
    if (conversation[index]!.isQuestion) question = index;
  }
  // A long run of tools: from its own question on. A call and its result are never parted.
  return question === -1
    ? Math.max(
        0,
        conversation.findLastIndex(({ isQuestion }) => isQuestion),
      )
    : question;
}
