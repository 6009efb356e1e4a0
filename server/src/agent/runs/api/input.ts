/** Input of an invoke, and its conversion to a message for the model. */
import { z } from "zod";
import type { Message } from "#agent/models/messages.ts";

const text = z.string().max(1_000_000);
const base64 = z
  .string()
  .max(8 * 1024 ** 2)
  .regex(/^[A-Za-z0-9+/]+={0,2}$/, { error: "must be base64" });
const url = z
  .string()
  .max(4096)
  .refine((value) => URL.parse(value)?.protocol === "https:", { error: "must be an https URL" })
  .describe("URL (https) that the model's provider fetches, not this server. Required without `data`.");
const partData = base64
  .optional()
  .describe("Content in base64, at most 8,388,608 characters. Required without `url`.");
const mediaType = z.string().regex(/^[\w.+-]{1,100}\/[\w.+*-]{1,100}$/, { error: "must be a media type" });

const TextPart = z.strictObject({
  type: z.literal("text").describe("Part with a text."),
  text: text.describe("Text, at most 1,000,000 characters."),
});
const ImagePart = z.strictObject({
  type: z.literal("image").describe("Part with an image."),
  data: partData,
  url: url.optional(),
  media_type: mediaType
    .default("image/*")
    .describe("Media type of the image, for example `image/png`. Default `image/*`."),
});
const FilePart = z.strictObject({
  type: z.literal("file").describe("Part with a file."),
  data: partData,
  url: url.optional(),
  media_type: mediaType.describe("Media type of the file, for example `application/pdf`."),
  filename: z
    .string()
    .min(1)
    .max(255)
    .optional()
    .describe("Name of the file for the model, for example `report.pdf`. Default: none."),
});
const Part = z
  .discriminatedUnion("type", [TextPart, ImagePart, FilePart])
  .refine((part) => part.type === "text" || (part.data === undefined) !== (part.url === undefined), {
    error: "must have either data or url",
  });
type Part = z.output<typeof Part>;

export const Input = z.union([text.min(1), z.array(Part).min(1).max(50)]).meta({ id: "AgentInput" });
export type Input = z.output<typeof Input>;

export const HistoryMessage = z
  .strictObject({
    role: z
      .enum(["user", "assistant"])
      .describe("Author of the message: `user`, or `assistant` for the agent."),
    content: z
      .union([text.min(1), z.array(Part).min(1).max(50)])
      .describe("Text, or 1 to 50 parts. A message of the assistant has text parts only."),
  })
  .refine(
    ({ role, content }) =>
      role === "user" || typeof content === "string" || content.every(({ type }) => type === "text"),
    { error: "must have text parts only in a message of the assistant" },
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
