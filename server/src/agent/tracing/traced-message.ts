/** Converts messages to the format of OpenTelemetry's conventions for generative AI. */
import { contentOf, type Message } from "../models/messages.ts";
import { withoutPictures } from "../tools/pictures.ts";

export interface TracedMessage {
  role: string;
  parts: Record<string, unknown>[];
}

export function toTracedMessage({ role, content }: Message): TracedMessage {
  if (typeof content === "string") return { role, parts: [{ type: "text", content }] };
  return { role, parts: content.map(toPart) };
}

type Part = Exclude<Message["content"], string>[number];

/** Returns a tool's result without its pictures. */
function outputOf(part: Extract<Part, { type: "tool-result" }>): unknown {
  const content = contentOf(part);
  return content ? { type: "text", value: withoutPictures(content) } : part.output;
}

/** Converts a part of a message. A file is reduced to its media type. */
function toPart(part: Part): Record<string, unknown> {
  switch (part.type) {
    case "text":
    case "reasoning":
      return { type: part.type, content: part.text };
    case "tool-call":
      return { type: "tool_call", id: part.toolCallId, name: part.toolName, arguments: part.input };
    case "tool-result":
      return { type: "tool_call_response", id: part.toolCallId, response: outputOf(part) };
    case "file":
      return { type: "file", mime_type: part.mediaType };
    default:
      return { type: part.type };
  }
}
