/** Errors that several folders of the Agent API use. */
import { defineError } from "#lib/errors.ts";

/** Error for a field that contradicts another value. `path` is the field's path in the body. */
export const invalidField = defineError(
  "invalid_request",
  400,
  (path: readonly (string | number)[], why: string) => {
    const field = path
      .map((part) => (typeof part === "number" ? `[${part}]` : `.${part}`))
      .join("")
      .replace(/^\./, "");
    // Path as a JSON Pointer (RFC 6901).
    const pointer = path
      .map((part) => `/${String(part).replaceAll("~", "~0").replaceAll("/", "~1")}`)
      .join("");
    return {
      detail: `${field}: ${why}`,
      meta: { pointer, errors: [{ field, message: why, pointer }] },
    };
  },
);

export const agentNotFound = defineError("agent_not_found", 404, () => "No such agent.");
export const versionNotFound = defineError(
  "version_not_found",
  404,
  () => "The agent has no such version. A version is a number (`3` or `v3`), an alias, or `latest`.",
);
