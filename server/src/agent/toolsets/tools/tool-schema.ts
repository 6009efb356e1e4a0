/** Wire and storage format of HTTP tools and of overrides. */
import { z } from "zod";

const ToolName = z
  .string()
  .regex(/^[A-Za-z0-9_-]{1,38}$/, { error: "must be 1 to 38 of A-Z, a-z, 0-9, - and _" });

/** Names of headers that the request itself needs, or that would change its target. */
const ownHeaders =
  /^(host|content-length|transfer-encoding|connection|upgrade|te|trailer|idempotency-key|expect|proxy-.*)$/i;
export const HeaderName = z
  .string()
  .regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$/, { error: "must be a valid header name" })
  .refine((name) => !ownHeaders.test(name), { error: "must not be a header that the server sets itself" });
/** A header value: printable ASCII, or a hint as in responses. */
const HeaderValue = z
  .string()
  .regex(/^(…[\x20-\x7e]{0,4}|[\x20-\x7e]{0,2000})$/, { error: "must be printable ASCII" });

const methods = ["GET", "POST", "PUT", "PATCH", "DELETE"] as const;

export const HttpTool = z
  .strictObject({
    name: ToolName.describe("Name of the tool, unique in the toolset: 1 to 38 of A-Z, a-z, 0-9, - and _."),
    description: z
      .string()
      .max(4000)
      .describe("Description of the tool for the model, at most 4,000 characters."),
    method: z.enum(methods).describe("HTTP method of the request."),
    path: z
      .string()
      .max(2000)
      .regex(/^\/[^?#\s\\]*$/, { error: "must begin with / and hold no query, fragment or space" })
      .refine((path) => !path.split("/").some((part) => part === "." || part === ".."), {
        error: "must not contain . or .. as a part",
      })
      .describe(
        "Path after the toolset's `url`, for example `/orders/{id}`. Each `{name}` is replaced by that required argument.",
      ),
    parameters: z
      .record(z.string(), z.unknown())
      .describe(
        "JSON Schema of the arguments, of type `object`. Arguments outside the path go into the query or the body.",
      ),
    headers: z
      .record(HeaderName, HeaderValue)
      .optional()
      .describe(
        "Headers of each request. Values are encrypted at rest. Responses show a hint of at most four characters, such as `…6789`. Send the hint or `********` in an update to keep the stored value.",
      ),
    body: z
      .enum(["json", "form", "none"])
      .optional()
      .describe(
        "Format of the request body. `none` puts the arguments into the query, as GET always does. Default: `none` for GET and DELETE, else `json`.",
      ),
  })
  .meta({ id: "AgentHttpTool" });
export type HttpTool = z.output<typeof HttpTool>;

export const Override = z.strictObject({
  name: ToolName.optional().describe(
    "Name for the model, after the toolset's name and `__`. Default: derived from the original name.",
  ),
  description: z
    .string()
    .max(4000)
    .optional()
    .describe("Description for the model, at most 4,000 characters. Default: the tool's own."),
  policy: z
    .enum(["allow", "ask", "deny"])
    .optional()
    .describe(
      "Policy of the tool: `allow` calls at once, `ask` needs an approval, `deny` hides it. A policy in an agent's `toolsets` takes precedence.",
    ),
});
export type ToolOverride = z.output<typeof Override>;
