/**
 * The key of secrets at rest: from the configuration, or from `<data>/secrets.key`, which the first start creates. The
 * first start also stores a sealed text in the database. A server whose key cannot open this text refuses to start, so
 * that it seals nothing with the wrong key.
 */
import { randomBytes } from "node:crypto";
import { chmodSync, existsSync, linkSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { keyBytes, SecretBox, SealedValueError } from "#lib/secret-box.ts";
import type { Db } from "#schema.ts";

export class SecretsKeyError extends Error {
  override readonly name = "SecretsKeyError";
}

const canary = "kontor";
const place = "installation:1:secrets_canary";

/** Opens the box that seals all secrets. `configured` is the key of the configuration, 32 bytes. */
export async function openSecrets(
  db: Db,
  options: { dataDir: string; configured: Buffer | null },
): Promise<SecretBox> {
  const file = join(options.dataDir, "secrets.key");
  const { secrets_canary: sealed } = await db
    .selectFrom("installation")
    .select("secrets_canary")
    .executeTakeFirstOrThrow();
  const key = options.configured ?? readKey(file) ?? (sealed ? undefined : makeKey(file));
  if (!key) {
    throw new SecretsKeyError(
      `${file} is missing, and sealed values in the database need it; put the file back`,
    );
  }
  const box = new SecretBox(key);
  if (!sealed) {
    await db
      .updateTable("installation")
      .set({ secrets_canary: box.seal(canary, place) })
      .where("secrets_canary", "is", null)
      .execute();
    // Reads the stored text again: if two servers start for the first time, only one key counts.
    return openSecrets(db, options);
  }
  try {
    box.open(sealed, place);
    return box;
  } catch (cause) {
    if (!(cause instanceof SealedValueError)) throw cause;
    const source = options.configured ? "KONTOR_SECRETS_KEY" : file;
    throw new SecretsKeyError(`${source} is not the key this database was set up with; use that key`, {
      cause,
    });
  }
}

function readKey(file: string): Buffer | undefined {
  if (!existsSync(file)) return undefined;
  const key = Buffer.from(readFileSync(file, "utf8").trim(), "base64");
  if (key.length !== keyBytes)
    throw new SecretsKeyError(`${file} does not hold a key: expected ${keyBytes} bytes as base64`);
  return key;
}

/** Writes a temporary file and links it: the file is complete or missing, and an existing file is never replaced. */
function makeKey(file: string): Buffer | undefined {
  const aside = `${file}.tmp-${process.pid}`;
  writeFileSync(aside, `${randomBytes(keyBytes).toString("base64")}\n`, { mode: 0o600 });
  chmodSync(aside, 0o600);
  try {
    linkSync(aside, file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  } finally {
    rmSync(aside, { force: true });
  }
  return readKey(file);
}
