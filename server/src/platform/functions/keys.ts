/**
 * Makes the key of a function with `auth_mode: api_key`. Only the response contains the key. The row stores its hash,
 * and its first characters as a hint.
 */
import { createHash } from "node:crypto";
import { newSecret } from "#accounts/secrets.ts";

const prefix = "fnk_";
const hintLength = prefix.length + 4;

export interface NewKey {
  /** Key to return to the owner, once. */
  key: string;
  /** Columns to store. */
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

/** Returns the SHA-256 hash of a key, 32 bytes. A key has 238 random bits, so a slow hash is not needed. */
export function hashKey(key: string): Buffer {
  return createHash("sha256").update(key).digest();
}
