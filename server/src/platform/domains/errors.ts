import { defineError } from "#lib/errors.ts";

export const noCustomDomain = defineError(
  "no_custom_domain",
  409,
  () => "The project has no custom domain. Set custom_domain first.",
);
