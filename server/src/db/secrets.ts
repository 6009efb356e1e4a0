/**
 * The key of the secrets at rest: from the configuration, else from `<data>/secrets.key`, which is made at first
 * start. A text sealed at first start lies in the database; a server that cannot open it holds another key and
 * refuses to start, before it seals anything that nobody could open later.
 */
import { randomBytes } from "node:crypto";
import { chmodSync, existsSync, linkSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { keyBytes, SecretBox, SealedValueError } from "#lib/secret-box.ts";
import type { Db } from "./db.ts";

export class SecretsKeyError extends Error {
  override readonly name = "SecretsKeyError";
}

const canary = "kontor";
const place = "installation:1:secrets_canary";

/** The box everything is sealed with. `configured` is the key of the configuration, 32 bytes. */
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
    throw new SecretsKeyError(`${file} is missing, and what is sealed in the database needs it; put it back`);
  }
  const box = new SecretBox(key);
  if (!sealed) {
    await db
      .updateTable("installation")
      .set({ secrets_canary: box.seal(canary, place) })
      .where("secrets_canary", "is", null)
      .execute();
    // Read back: of two servers at their first start only one key counts.
    return openSecrets(db, options);
  }
  try {
    box.open(sealed, place);
    return box;
  } catch (cause) {
    if (!(cause instanceof SealedValueError)) throw cause;
    const source = options.configured ? "KONTOR_SECRETS_KEY" : file;
    throw new SecretsKeyError(`${source} is not the key this database was set up with`, { cause });
  }
}

function readKey(file: string): Buffer | undefined {
  if (!existsSync(file)) return undefined;
  const key = Buffer.from(readFileSync(file, "utf8").trim(), "base64");
  if (key.length !== keyBytes)
    throw new SecretsKeyError(`${file} does not hold a key: expected ${keyBytes} bytes as base64`);
  return key;
}

/** Written aside and linked: the file is whole or not there, and an existing one is never replaced. */
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
