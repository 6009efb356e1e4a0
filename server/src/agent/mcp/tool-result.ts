/**
 * Converts results of MCP tools and resources for a model. Texts and pictures stay; a note replaces any other content.
 */
import { isDeepStrictEqual } from "node:util";
import { base64Bytes, resultOf, type ToolContent, toPicture } from "../tools/pictures.ts";
import type { ToolResult } from "../tools/tool.ts";
import type { CallToolResult, ReadResourceResult } from "./connection.ts";

type Block = CallToolResult["content"][number];
type Part = ToolContent[number];
type Hide = (text: string) => string;

export function toToolResult(
  { content, structuredContent, isError }: CallToolResult,
  hide: Hide,
): ToolResult {
  const parts = content.map(partOf);
  // The data is left out if a text contains the same JSON, because most servers send the result in both forms.
  const isSent = content.some((block) => block.type === "text" && isSame(block.text, structuredContent));
  if (structuredContent !== undefined && !isSent) parts.push(text(JSON.stringify(structuredContent)));
  return { isOk: isError !== true, ...joinParts(parts, hide) };
}

export function toResourceResult({ contents }: ReadResourceResult, hide: Hide): ToolResult {
  return { isOk: true, ...joinParts(contents.map(resourcePart), hide) };
}

function joinParts(parts: readonly Part[], hide: Hide): Omit<ToolResult, "isOk"> {
  const result = resultOf(parts, hide);
  return result.text === "" ? { text: "[the tool returned nothing]" } : result;
}

const text = (value: string): Part => ({ type: "text", text: value });

function partOf(block: Block): Part {
  switch (block.type) {
    case "text":
      return text(block.text);
    case "image":
    case "audio":
      return pictureOr(`[${block.type} of type ${block.mimeType}`, block.data);
    case "resource_link":
      return text(`[resource ${block.uri}${block.description ? `: ${block.description}` : ""}]`);
    case "resource":
      return resourcePart(block.resource);
    default:
      return text("[content of an unknown type, left out]");
  }
}

function resourcePart(resource: ReadResourceResult["contents"][number]): Part {
  if ("text" in resource) return text(`[resource ${resource.uri}]\n${resource.text}`);
  return pictureOr(`[resource ${resource.uri} of type ${resource.mimeType ?? "unknown"}`, resource.blob);
}

/**
 * Returns the data as a picture, or a note if the data is no picture. The bytes decide the media type, because the
 * server may declare a wrong one.
 */
function pictureOr(named: string, data: string): Part {
  return toPicture(Buffer.from(data, "base64")) ?? text(`${named}, ${base64Bytes(data)} bytes, left out]`);
}

function isSame(one: string, data: unknown): boolean {
  if (data === undefined) return false;
  try {
    return isDeepStrictEqual(JSON.parse(one), data);
  } catch {
    return false;
  }
}
