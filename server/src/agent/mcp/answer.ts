/** What a tool answered, as the model is told it: texts, and of what is no text that it was there. */
import { isDeepStrictEqual } from "node:util";
import { cutOff } from "../tools/result.ts";
import type { ToolAnswer } from "../tools/tool.ts";
import type { CallToolResult } from "./connection.ts";

type Block = CallToolResult["content"][number];

export function answerOf(
  { content, structuredContent, isError }: CallToolResult,
  hide: (text: string) => string,
): ToolAnswer {
  const texts = content.map(textOf);
  // Most servers say it twice, as data and as the same JSON in a text.
  const isSaid = content.some((block) => block.type === "text" && isSame(block.text, structuredContent));
  if (structuredContent !== undefined && !isSaid) texts.push(JSON.stringify(structuredContent));
  const text = cutOff(hide(texts.join("\n\n")));
  return { isOk: isError !== true, text: text === "" ? "[the tool answered nothing]" : text };
}

function textOf(block: Block): string {
  switch (block.type) {
    case "text":
      return block.text;
    case "image":
    case "audio":
      return `[${block.type} of type ${block.mimeType}, ${bytesOf(block.data)} bytes, left out]`;
    case "resource_link":
      return `[resource ${block.uri}${block.description ? `: ${block.description}` : ""}]`;
    case "resource":
      return "text" in block.resource
        ? `[resource ${block.resource.uri}]\n${block.resource.text}`
        : `[resource ${block.resource.uri} of type ${block.resource.mimeType ?? "unknown"}, ${bytesOf(block.resource.blob)} bytes, left out]`;
    default:
      return "[something of a kind that can't be told, left out]";
  }
}

function isSame(text: string, data: unknown): boolean {
  if (data === undefined) return false;
  try {
    return isDeepStrictEqual(JSON.parse(text), data);
  } catch {
    return false;
  }
}

/** Of base64. */
function bytesOf(data: string): number {
  return Buffer.byteLength(data, "base64");
}
