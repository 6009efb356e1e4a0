import { defineError } from "#lib/errors.ts";

export const imageNotFound = defineError("image_not_found", 404, () => "No such image.");

export const imageLive = defineError(
  "image_live",
  409,
  (tag: string) => `Image ${tag} is live or being deployed: deploy another image first.`,
);
