/**
 * Responds to questions of an MCP server to the user (elicitation). Such a question comes in the middle of a call. The
 * agent's config decides whether the client accepts with the defaults of the fields (SEP-1034), declines, or passes the
 * question to a person. Without a person, a question is always declined if a required field has no default.
 */
import type { Client, ClientCapabilities, ElicitResult } from "@modelcontextprotocol/client";
import type { AskingCalls } from "./asking-calls.ts";

export type Elicitation = "defaults" | "decline" | "person";

/** Declares support for forms only, because a URL needs a person with a browser. */
export const elicitationCapability: ClientCapabilities = { elicitation: { form: { applyDefaults: true } } };

const fieldsMax = 100;

export function handleElicitation(client: Client, elicitation: Elicitation, calls: AskingCalls): void {
  client.setRequestHandler("elicitation/create", async ({ params }, { mcpReq }): Promise<ElicitResult> => {
    if (elicitation === "person")
      return (await calls.current()?.(params, mcpReq.signal)) ?? { action: "decline" };
    const schema = "requestedSchema" in params ? params.requestedSchema : undefined;
    const content = elicitation === "defaults" ? defaultsOf(schema) : undefined;
    return content ? { action: "accept", content } : { action: "decline" };
  });
}

/** Returns the defaults of all fields. Returns undefined if a required field has no default. */
function defaultsOf(schema: unknown): Record<string, Primitive> | undefined {
  const { properties, required } = (schema ?? {}) as { properties?: unknown; required?: unknown };
  if (typeof properties !== "object" || properties === null) return undefined;
  const fields = Object.entries(properties);
  if (fields.length > fieldsMax) return undefined;
  const content = Object.fromEntries(
    fields.flatMap(([name, field]): [string, Primitive][] => {
      const value: unknown = (field as { default?: unknown } | null)?.default;
      return isPrimitive(value) ? [[name, value]] : [];
    }),
  );
  const isWhole = !Array.isArray(required) || required.every((name) => Object.hasOwn(content, String(name)));
  return isWhole ? content : undefined;
}

type Primitive = string | number | boolean | string[];

/** Returns true for a value that a form can contain. The only list in a form is a choice of several texts. */
function isPrimitive(value: unknown): value is Primitive {
  return (
    ["string", "number", "boolean"].includes(typeof value) ||
    (Array.isArray(value) && value.every((one) => typeof one === "string"))
  );
}
