/** A request as a template sees it. What tells who sent it, and any secret, is not among it. */
import type { IncomingHttpHeaders } from "node:http";
import type { Delivered } from "./template.ts";

export interface Delivery {
  headers: IncomingHttpHeaders;
  query: unknown;
  body: Buffer;
}

/** Headers that let somebody in, or prove something, wherever they come from. */
const telltale = /authorization|cookie|secret|token|signature|password|api-?key/;

export function deliveredOf(
  { headers, query, body }: Delivery,
  webhook: { id: string; name: string },
  secret: string,
  receivedAt: Date,
): Delivered {
  return {
    body: parseBody(headers["content-type"] ?? "", body.toString("utf8")),
    headers: Object.fromEntries(
      Object.entries(headers).flatMap(([name, value]) => {
        const text = [value].flat().join(", ");
        return telltale.test(name) || text.includes(secret) ? [] : [[name, text]];
      }),
    ),
    query,
    webhook: { id: webhook.id, name: webhook.name },
    received_at: receivedAt.toISOString(),
  };
}

/** The sender's own id of what it delivers: the same one comes again where it heard no answer. */
export function deliveryIdOf(headers: IncomingHttpHeaders): string | undefined {
  for (const name of ["webhook-id", "x-github-delivery", "x-service-delivery"]) {
    const value = headers[name];
    if (typeof value === "string" && value !== "") return value;
  }
  return undefined;
}

/** JSON wherever it is JSON, whatever its sender calls it; the fields of a form; else the text. */
function parseBody(contentType: string, text: string): unknown {
  if (/^application\/x-www-form-urlencoded\b/i.test(contentType)) return fieldsOf(new URLSearchParams(text));
  try {
    const value: unknown = JSON.parse(text, keepDigits as (key: string, value: unknown) => unknown);
    // What is too deep to be written again is a text.
    JSON.stringify(value);
    return typeof value === "string" || typeof value === "object" ? value : text;
  } catch {
    return text;
  }
}

function fieldsOf(form: URLSearchParams): Record<string, string> {
  return Object.fromEntries(form);
}

/** Ids of twenty digits are no numbers of ours: what a number can't hold is told as it came. */
function keepDigits(_: string, value: unknown, { source }: { source?: string }): unknown {
  if (typeof value !== "number" || source === undefined || String(value) === source) return value;
  return (JSON as unknown as { rawJSON: (text: string) => unknown }).rawJSON(source);
}
