/** Bearer secrets of 40 random characters, which only their holder knows. The database stores a hash. */
import { createHash } from "node:crypto";
import { randomText } from "#lib/ids.ts";

const base62 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/**
 * Returns `prefix` and 238 random bits. Guessing is impossible, so a fast hash is enough, and a look-up by hash reveals
 * nothing.
 */
export function newSecret(prefix: string): string {
  return prefix + randomText(base62, 40);
}

/** SHA-256, 64 hexadecimal digits. */
export function hashSecret(secret: string): string {
  return createHash("sha256").update(secret).digest("hex");
}
