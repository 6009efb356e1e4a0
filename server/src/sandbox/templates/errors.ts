import { defineError } from "#lib/errors.ts";

export const templateNotFound = defineError("template_not_found", 404, () => "No such template.");

export const tagNotFound = defineError("tag_not_found", 404, () => "The template has no such tag.");

export const templateNotReady = defineError("template_not_ready", 409, (status: "building" | "failed") =>
  status === "building" ? "The template is still being built." : "The template's build failed.",
);

export const unknownBase = defineError(
  "invalid_request",
  400,
  (name: string, known: readonly string[]) =>
    `base_template: unknown template "${name}"; known are ${known.join(", ")}.`,
);

export const templateLimitReached = defineError("template_limit_reached", 409, (allowed: number) => ({
  detail: `An account has at most ${allowed} templates; delete one first.`,
  meta: { limit: "templates_max", allowed },
}));
