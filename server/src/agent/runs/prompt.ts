/**
 * What a model is told: the system's words and the conversation. The log is never edited; where it has outgrown the
 * config's `compact_at_tokens` the model gets its last messages alone, beginning with somebody's question.
 */
import type { AgentConfig } from "../agents/config.ts";
import { askedIn, estimateTokens, type Message, revive, toolMessage } from "../models/messages.ts";

export interface Prompt {
  messages: Message[];
  /** How many of the conversation are left out. */
  leftOut: number;
}

/** `before`: how many messages were said before these and are not told in any case. */
export function promptOf(config: AgentConfig, conversation: readonly Message[], before: number): Prompt {
  const system: Message[] = config.system === undefined ? [] : [{ role: "system", content: config.system }];
  const leftOut = leaveOut(config, conversation, before > 0);
  const told = withResults(conversation.slice(leftOut)).map(revive);
  return { messages: [...system, ...told], leftOut: before + leftOut };
}

/** A run that was cut off left calls without results, and providers take no call without one. */
function withResults(conversation: readonly Message[]): Message[] {
  return conversation.flatMap((message, index) => {
    const asked = askedIn(message);
    if (asked.length === 0 || conversation[index + 1]?.role === "tool") return [message];
    const text = "The run ended before an outcome was known.";
    return [message, toolMessage(asked.map((call) => ({ ...call, isOk: false, text })))];
  });
}

function leaveOut({ context }: AgentConfig, conversation: readonly Message[], isCut: boolean): number {
  const tokens = conversation.reduce((sum, message) => sum + estimateTokens(message), 0);
  if (!isCut && tokens <= context.compact_at_tokens) return 0;
  const from = Math.max(0, conversation.length - context.keep_last_messages);
  const isQuestion = ({ role }: Message) => role === "user";
  const question = conversation.findIndex((message, index) => index >= from && isQuestion(message));
  // A long run of tools: from its own question on. A call and its result are never parted.
  return question === -1 ? Math.max(0, conversation.findLastIndex(isQuestion)) : question;
}
