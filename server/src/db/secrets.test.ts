import { randomBytes } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { testDatabase } from "../../test/harness.ts";
import { openSecrets, SecretsKeyError } from "./secrets.ts";

const { db } = await testDatabase();
let dataDir: string;
beforeEach(async () => {
  dataDir = mkdtempSync(join(tmpdir(), "kontor-secrets-"));
  await db.updateTable("installation").set({ secrets_canary: null }).execute();
});
afterEach(() => rmSync(dataDir, { recursive: true }));

test("creates a key at the first start that only the owner can read, and opens with it later", async () => {
  const first = await openSecrets(db, { dataDir, configured: null });
  expect(statSync(join(dataDir, "secrets.key")).mode & 0o777).toBe(0o600);
  const again = await openSecrets(db, { dataDir, configured: null });
  expect(again.open(first.seal("x", "a"), "a").toString()).toBe("x");
});

test("refuses to start with a wrong key, a missing key or a broken file", async () => {
  await openSecrets(db, { dataDir, configured: null });
  const kept = readFileSync(join(dataDir, "secrets.key"), "utf8");
  await expect(openSecrets(db, { dataDir, configured: randomBytes(32) })).rejects.toThrow("is not the key");
  rmSync(join(dataDir, "secrets.key"));
  await expect(openSecrets(db, { dataDir, configured: null })).rejects.toThrow(SecretsKeyError);
  // The failed start created no new key in place of the lost key.
  expect(() => statSync(join(dataDir, "secrets.key"))).toThrow("ENOENT");
  const box = await openSecrets(db, { dataDir, configured: Buffer.from(kept, "base64") });
  expect(box.seal("x", "a").length).toBeGreaterThan(0);
});

test("gives two servers at their first start the same key, or refuses one", async () => {
  const starts = await Promise.all([1, 2, 3].map(() => openSecrets(db, { dataDir, configured: null })));
  expect(starts[1]!.open(starts[0]!.seal("x", "a"), "a").toString()).toBe("x");
  expect(starts[2]!.open(starts[0]!.seal("x", "a"), "a").toString()).toBe("x");
});
