/**
 * A conversation as it is kept: messages in the AI SDK's own form, so that what one provider said can be told to
 * another. Kept as JSON, in which an address is a text; the SDK wants it as a URL.
 */
import type { LanguageModelV4Message } from "@ai-sdk/provider";

export type Message = LanguageModelV4Message;

/** The ids of calls that a message asks for. */
export function askedIn(message: Message | undefined): { id: string; tool: string }[] {
  if (message?.role !== "assistant") return [];
  return message.content.flatMap((part) =>
    part.type === "tool-call" ? [{ id: part.toolCallId, tool: part.toolName }] : [],
  );
}

/** What came of calls, as a model is told it. */
export function toolMessage(
  results: readonly { id: string; tool: string; isOk: boolean; text: string }[],
): Message {
  return {
    role: "tool",
    content: results.map(({ id, tool, isOk, text }) => ({
      type: "tool-result",
      toolCallId: id,
      toolName: tool,
      output: { type: isOk ? "text" : "error-text", value: text },
    })),
  };
}

export function revive(message: Message): Message {
  if (message.role === "system" || message.role === "tool") return message;
  const content = message.content.map((part) =>
    part.type === "file" && part.data.type === "url"
      ? { ...part, data: { ...part.data, url: new URL(part.data.url) } }
      : part,
  );
  return { ...message, content } as Message;
}

/** Without what a model thought: it is of use until its tools answered. */
export function withoutThoughts(message: Message): Message {
  if (message.role !== "assistant" || !message.content.some(({ type }) => type === "reasoning"))
    return message;
  return { ...message, content: message.content.filter(({ type }) => type !== "reasoning") };
}

/** Roughly: four characters are a token, and of a picture or a file in base64 sixty-four. */
export function estimateTokens({ content }: Message): number {
  const parts = typeof content === "string" ? [content] : content;
  const tokens = parts.map((part) =>
    typeof part === "object" && part.type === "file" && part.data.type === "data"
      ? String(part.data.data).length / 64
      : JSON.stringify(part).length / 4,
  );
  return Math.ceil(tokens.reduce((sum, count) => sum + count, 0)) + 4;
}
