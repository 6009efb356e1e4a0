/**
 * A conversation as it is kept: messages in the AI SDK's own form, so that what one provider said can be told to
 * another. Kept as JSON, in which an address is a text; the SDK wants it as a URL.
 */
import type { LanguageModelV4Message } from "@ai-sdk/provider";

export type Message = LanguageModelV4Message;

export function revive(message: Message): Message {
  if (message.role === "system" || message.role === "tool") return message;
  const content = message.content.map((part) =>
    part.type === "file" && part.data.type === "url"
      ? { ...part, data: { ...part.data, url: new URL(part.data.url) } }
      : part,
  );
  return { ...message, content } as Message;
}

/** Roughly: four characters are a token, and a picture is some hundreds. */
export function estimateTokens(message: Message): number {
  const text = JSON.stringify(message, (key, value: unknown) =>
    key === "data" && typeof value === "string" ? "" : value,
  );
  return Math.ceil(text.length / 4) + 1;
}
