/** Refusals that more than one folder of this room makes. */
import { defineError } from "#lib/errors.ts";

/** What a field says does not fit what else is known. `path` leads to it from the top of the body. */
export const invalidField = defineError(
  "invalid_request",
  400,
  (path: readonly (string | number)[], why: string) => {
    const field = path
      .map((part) => (typeof part === "number" ? `[${part}]` : `.${part}`))
      .join("")
      .replace(/^\./, "");
    // RFC 6901.
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
