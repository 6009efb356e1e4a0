/**
 * The key of a function with `auth_mode: api_key`. It is known to whoever was answered it; what is stored recognises
 * it, and says by its first characters which one it is.
 */
import { createHash } from "node:crypto";
import { newSecret } from "#accounts/secrets.ts";

const prefix = "fnk_";
const hintLength = prefix.length + 4;

export interface NewKey {
  /** For its owner, once. */
  key: string;
  /** What is stored. */
  columns: { auth_mode: "api_key"; api_key_hash: Buffer; api_key_hint: string };
}

export function newKey(): NewKey {
  const key = newSecret(prefix);
  return {
    key,
    columns: {
      auth_mode: "api_key",
      api_key_hash: hashKey(key),
      api_key_hint: key.slice(0, hintLength),
    },
  };
}

/** SHA-256, 32 bytes: a key is 238 random bits, and nothing to guess. */
export function hashKey(key: string): Buffer {
  return createHash("sha256").update(key).digest();
}
