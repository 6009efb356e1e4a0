/** What a caller says to an agent, and the message a model gets of it. */
import { z } from "zod";
import type { Message } from "../models/messages.ts";

const text = z.string().max(1_000_000);
const base64 = z
  .string()
  .max(8 * 1024 ** 2)
  .regex(/^[A-Za-z0-9+/]+={0,2}$/, { error: "must be base64" });
const url = z
  .string()
  .max(4096)
  .refine((value) => URL.parse(value)?.protocol === "https:", { error: "must be an https URL" })
  .describe("Fetched by the model's provider, not by this server.");
const mediaType = z.string().regex(/^[\w.+-]{1,100}\/[\w.+*-]{1,100}$/, { error: "must be a media type" });

const TextPart = z.strictObject({ type: z.literal("text"), text });
const ImagePart = z.strictObject({
  type: z.literal("image"),
  data: base64.optional(),
  url: url.optional(),
  media_type: mediaType.default("image/*"),
});
const FilePart = z.strictObject({
  type: z.literal("file"),
  data: base64.optional(),
  url: url.optional(),
  media_type: mediaType,
  filename: z.string().min(1).max(255).optional(),
});
const Part = z
  .discriminatedUnion("type", [TextPart, ImagePart, FilePart])
  .refine((part) => part.type === "text" || (part.data === undefined) !== (part.url === undefined), {
    error: "needs one of data and url",
  });
type Part = z.output<typeof Part>;

export const Input = z.union([text.min(1), z.array(Part).min(1).max(50)]).meta({ id: "AgentInput" });
export type Input = z.output<typeof Input>;

export const HistoryMessage = z
  .strictObject({
    role: z.enum(["user", "assistant"]),
    content: z.union([text.min(1), z.array(Part).min(1).max(50)]),
  })
  .refine(
    ({ role, content }) =>
      role === "user" || typeof content === "string" || content.every(({ type }) => type === "text"),
    { error: "an assistant's message holds text alone" },
  )
  .meta({ id: "AgentHistoryMessage" });
export type HistoryMessage = z.output<typeof HistoryMessage>;

export function userMessage(input: Input): Message {
  const parts: readonly Part[] = typeof input === "string" ? [{ type: "text", text: input }] : input;
  return { role: "user", content: parts.map(toPart) } as Message;
}

export function historyMessage({ role, content }: HistoryMessage): Message {
  if (role === "user") return userMessage(content);
  const parts = typeof content === "string" ? [{ type: "text" as const, text: content }] : content;
  return { role: "assistant", content: parts.map(toPart) } as Message;
}

function toPart(part: Part) {
  if (part.type === "text") return { type: "text", text: part.text };
  const data =
    part.url === undefined ? { type: "data", data: part.data } : { type: "url", url: new URL(part.url).href };
  const filename = part.type === "file" && part.filename !== undefined ? { filename: part.filename } : {};
  return { type: "file", mediaType: part.media_type, data, ...filename };
}
