/**
 * Stored conversations. Messages have the AI SDK's form, so that another provider can read them. Messages are stored as
 * JSON, where an address is a string; the SDK expects a `URL`.
 */
import type { LanguageModelV4Message } from "@ai-sdk/provider";
import { isPicture, type PicturePart, type ToolContent } from "../tools/pictures.ts";

export type Message = LanguageModelV4Message;

/** Returns the tool calls of a message. */
export function toolCallsIn(message: Message | undefined): { id: string; tool: string }[] {
  if (message?.role !== "assistant") return [];
  return message.content.flatMap((part) =>
    part.type === "tool-call" ? [{ id: part.toolCallId, tool: part.toolName }] : [],
  );
}

/** Returns the message with the results of tool calls. */
export function toolMessage(
  results: readonly {
    id: string;
    tool: string;
    isOk: boolean;
    text: string;
    /** The result with its pictures. */
    content?: ToolContent | undefined;
  }[],
): Message {
  return {
    role: "tool",
    content: results.map(({ id, tool, isOk, text, content }) => ({
      type: "tool-result",
      toolCallId: id,
      toolName: tool,
      output: content
        ? { type: "content", value: [...(isOk ? [] : [failedCall]), ...content] }
        : { type: isOk ? "text" : "error-text", value: text },
    })),
  };
}

/**
 * Text in place of a result with pictures, because providers reject pictures in a result that is marked as an error.
 */
const failedCall = { type: "text" as const, text: "The call failed." };

export function revive(message: Message): Message {
  if (message.role === "system" || message.role === "tool") return message;
  const content = message.content.map((part) =>
    part.type === "file" && part.data.type === "url"
      ? { ...part, data: { ...part.data, url: new URL(part.data.url) } }
      : part,
  );
  return { ...message, content } as Message;
}

/** Removes reasoning from a message. Providers need the reasoning only until they get the tools' results. */
export function withoutReasoning(message: Message): Message {
  if (message.role !== "assistant" || !message.content.some(({ type }) => type === "reasoning"))
    return message;
  return { ...message, content: message.content.filter(({ type }) => type !== "reasoning") };
}

/** Maximum number of tokens per picture: providers scale larger pictures down. */
const pictureMaxTokens = 2_000;

/**
 * Estimates the tokens of a message: one token for four characters of text, or for 64 characters of a base64 picture or
 * file.
 */
export function estimateTokens({ role, content }: Message): number {
  const parts = typeof content === "string" ? [content] : content;
  const tokens = parts
    .flatMap((part): readonly unknown[] => contentOf(part) ?? [part])
    .map((part) => {
      const bytes = base64Of(part);
      if (bytes === undefined) return JSON.stringify(part).length / 4;
      return role === "tool" ? Math.min(bytes / 64, pictureMaxTokens) : bytes / 64;
    });
  return Math.ceil(tokens.reduce((sum, count) => sum + count, 0)) + 4;
}

function base64Of(part: unknown): number | undefined {
  const { type, data } = part as { type?: string; data?: { type: string; data: unknown } };
  return type === "file" && data?.type === "data" ? String(data.data).length : undefined;
}

type Part = Exclude<Message["content"], string>[number];
type ResultPart = Extract<Part, { type: "tool-result" }>;

/** Returns the texts and pictures of a tool's result, or undefined if the result is only a text. */
export function contentOf(part: Part | string): ToolContent | undefined {
  return typeof part === "object" && part.type === "tool-result" && part.output.type === "content"
    ? (part.output.value as ToolContent)
    : undefined;
}

export function picturesIn(message: Message): PicturePart[] {
  if (message.role !== "tool") return [];
  return message.content.flatMap((part) => (contentOf(part) ?? []).filter(isPicture));
}

/** Replaces the content of tool results that contain pictures. */
export function mapContent(
  message: Message,
  change: (content: ToolContent) => ToolContent | string,
): Message {
  if (message.role !== "tool" || message.content.every((part) => contentOf(part) === undefined))
    return message;
  const content = message.content.map((part) => {
    const old = contentOf(part);
    if (old === undefined || part.type !== "tool-result") return part;
    const changed = change(old);
    const output: ResultPart["output"] =
      typeof changed === "string"
        ? { type: "text", value: changed }
        : { type: "content", value: [...changed] };
    return { ...part, output };
  });
  return { ...message, content };
}
