/** Bearer secrets: made from 40 random characters, known to their holder alone, stored as a hash. */
import { createHash } from "node:crypto";
import { randomText } from "#lib/ids.ts";

const base62 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/** `prefix` and 238 random bits: nothing to guess, so a fast hash is enough and a lookup by hash leaks nothing. */
export function newSecret(prefix: string): string {
  return prefix + randomText(base62, 40);
}

/** SHA-256, 64 hexadecimal digits. */
export function hashSecret(secret: string): string {
  return createHash("sha256").update(secret).digest("hex");
}
