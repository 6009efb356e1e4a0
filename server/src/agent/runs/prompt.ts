/**
 * What a model is told: the system's words and the conversation. The log is never edited; where it has outgrown the
 * config's `compact_at_tokens` the model gets its last messages alone, beginning with somebody's question.
 */
import type { AgentConfig } from "../agents/config.ts";
import { estimateTokens, type Message, revive } from "../models/messages.ts";

export interface Prompt {
  messages: Message[];
  /** How many of the conversation are left out. */
  leftOut: number;
}

export function promptOf(config: AgentConfig, conversation: readonly Message[]): Prompt {
  const system: Message[] = config.system === undefined ? [] : [{ role: "system", content: config.system }];
  const leftOut = leaveOut(config, conversation);
  return { messages: [...system, ...conversation.slice(leftOut).map(revive)], leftOut };
}

function leaveOut({ context }: AgentConfig, conversation: readonly Message[]): number {
  const tokens = conversation.reduce((sum, message) => sum + estimateTokens(message), 0);
  if (tokens <= context.compact_at_tokens) return 0;
  const from = Math.max(0, conversation.length - context.keep_last_messages);
  const question = conversation.findIndex(({ role }, index) => index >= from && role === "user");
  // The last message is always somebody's question, or the repair of an answer.
  return question === -1 ? conversation.length - 1 : question;
}
