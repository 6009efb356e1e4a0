/** Builds the request of a call from the tool, the toolset's address and the model's arguments. The request is data. */
import type { HttpTool } from "../tools/tool-schema.ts";

export interface ToolRequest {
  method: HttpTool["method"];
  url: URL;
  headers: Record<string, string>;
  body: string | undefined;
}

/** Thrown for arguments that make no valid request. The model gets the message. */
export class UnfitArguments extends Error {
  override readonly name = "UnfitArguments";
}

export function buildRequest(
  tool: HttpTool,
  toolset: { url: string; headers: Record<string, string> },
  values: Readonly<Record<string, unknown>>,
): ToolRequest {
  const rest = new Map(Object.entries(values));
  const path = tool.path.replaceAll(/\{([^{}]*)\}/g, (_, name: string) => {
    const value = toText(rest.get(name));
    rest.delete(name);
    // An empty value, `.` or `..` would change the request's path.
    if (value === "" || value === "." || value === "..")
      throw new UnfitArguments(`${name} must not be empty, . or .. because it is a part of the path`);
    return encodeURIComponent(value.toWellFormed());
  });
  const url = new URL(toolset.url + path);
  const kind = tool.body ?? (tool.method === "GET" || tool.method === "DELETE" ? "none" : "json");
  const headers = {
    accept: "application/json, text/*;q=0.9, */*;q=0.1",
    ...lowerNames(tool.headers ?? {}),
    ...toolset.headers,
  };
  if (kind === "none" || tool.method === "GET") {
    for (const [name, value] of rest) {
      for (const one of Array.isArray(value) ? value : [value]) url.searchParams.append(name, toText(one));
    }
    return { method: tool.method, url, headers, body: undefined };
  }
  if (kind === "json") {
    const body = JSON.stringify(Object.fromEntries(rest));
    return { method: tool.method, url, headers: { ...headers, "content-type": "application/json" }, body };
  }
  const form = new URLSearchParams([...rest].map(([name, value]): [string, string] => [name, toText(value)]));
  const type = "application/x-www-form-urlencoded";
  return { method: tool.method, url, headers: { ...headers, "content-type": type }, body: form.toString() };
}

function toText(value: unknown): string {
  if (typeof value === "string") return value;
  return value === undefined ? "" : JSON.stringify(value);
}

function lowerNames(headers: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
}
