/**
 * Converts a request to the delivery that templates read. Secrets and headers that authenticate the sender are left
 * out.
 */
import type { IncomingHttpHeaders } from "node:http";
import type { TemplateInput } from "./template.ts";

export interface Delivery {
  headers: IncomingHttpHeaders;
  query: unknown;
  body: Buffer;
}

/** Matches names of headers that authenticate or sign a request. */
const telltale = /authorization|cookie|secret|token|signature|password|api-?key/;

export function toTemplateInput(
  { headers, query, body }: Delivery,
  webhook: { id: string; name: string },
  secret: string,
  receivedAt: Date,
): TemplateInput {
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

/** Returns the sender's id of the delivery. A sender that retries repeats this id. */
export function deliveryIdOf(headers: IncomingHttpHeaders): string | undefined {
  for (const name of ["webhook-id", "x-github-delivery", "x-service-delivery"]) {
    const value = headers[name];
    if (typeof value === "string" && value !== "") return value;
  }
  return undefined;
}

/** Parses a body: a form by its content type, and JSON under any other content type. Any other body stays text. */
function parseBody(contentType: string, text: string): unknown {
  if (/^application\/x-www-form-urlencoded\b/i.test(contentType)) return fieldsOf(new URLSearchParams(text));
  try {
    const value: unknown = JSON.parse(text, keepDigits as (key: string, value: unknown) => unknown);
    // This call throws if the value is too deep to serialize. The body then stays text.
    JSON.stringify(value);
    return typeof value === "string" || typeof value === "object" ? value : text;
  } catch {
    return text;
  }
}

function fieldsOf(form: URLSearchParams): Record<string, string> {
  return Object.fromEntries(form);
}

/**
 * Reviver that keeps the digits of integers that a JavaScript number cannot represent, such as ids of twenty digits.
 */
function keepDigits(_: string, value: unknown, { source }: { source?: string }): unknown {
  if (typeof value !== "number" || source === undefined || String(value) === source) return value;
  return (JSON as unknown as { rawJSON: (text: string) => unknown }).rawJSON(source);
}
