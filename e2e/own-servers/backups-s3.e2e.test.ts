/** Backups in an S3 object store, from outside: uploaded, downloaded at the backup's own address, restored, deleted. */
import { createHash } from "node:crypto";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import S3rver from "@20minutes/s3rver";
import pg from "pg";
import { run } from "@kontor/runtime/exec.ts";
import { afterAll, beforeAll, expect, test } from "vitest";
import {
  type Addon,
  backedUp,
  createAddon,
  listBackups,
  pathOf,
  restoreAndWait,
  running,
} from "../support/addons.ts";
import { eventually } from "../support/answers.ts";
import { makeProject } from "../support/projects.ts";
import { type Server, startServer } from "../support/server.ts";

const directory = mkdtempSync(join(tmpdir(), "kontor-e2e-s3-"));
const store = new S3rver({
  address: "127.0.0.1",
  port: 0,
  silent: true,
  directory,
  allowMismatchedSignatures: false,
  serviceEndpoint: "localhost",
  configureBuckets: [{ name: "kept", configs: [] }],
});
let endpoint: string;
let server: Server;
let addon: Addon;

beforeAll(async () => {
  const { port } = await store.run();
  endpoint = `http://127.0.0.1:${port}`;
  server = await startServer(
    {
      KONTOR_POOL_SIZE: "0",
      KONTOR_ADDONS_PORTS: "25430-25439",
      KONTOR_BACKUPS_STORE: "s3",
      KONTOR_BACKUPS_S3_ENDPOINT: endpoint,
      KONTOR_BACKUPS_S3_BUCKET: "kept",
      KONTOR_BACKUPS_S3_REGION: "eu-central-1",
      // Fixed credentials of this store.
      KONTOR_BACKUPS_S3_ACCESS_KEY: "S3RVER",
      KONTOR_BACKUPS_S3_SECRET_KEY: "S3RVER",
      KONTOR_BACKUPS_S3_PREFIX: "installation/",
    },
    ["postgres-15"],
  );
  const { id } = await makeProject(server);
  addon = await createAddon(server, id, { kind: "postgres", size: "small", public: true });
});
afterAll(async () => {
  await server?.destroy();
  await store.close();
  rmSync(directory, { recursive: true, force: true });
});

async function sql(text: string): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: addon.public_connection_url! });
  client.on("error", () => {});
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

/** Returns the names of the stored objects, without the store's metadata files. */
function listObjects(): string[] {
  const files = readdirSync(join(directory, "kept"), { recursive: true, withFileTypes: true });
  return files
    .filter((file) => file.isFile() && file.name.endsWith("._S3rver_object"))
    .map(({ name }) => name);
}

test(
  "uploads a backup to the S3 store, downloads it by its URL, restores and deletes it",
  { timeout: 300_000 },
  async () => {
    // Some megabytes of incompressible data, for more than one part.
    await sql(
      "create table pens as select n, (select string_agg(md5(random()::text || n || i), '') from generate_series(1, 40) i) as ink from generate_series(1, 18000) n",
    );
    const held = await sql(
      "select count(*)::int as pens, md5(string_agg(ink, '' order by n)) as ink from pens",
    );
    const backup = await backedUp(server, addon);
    expect(backup.size_bytes).toBeGreaterThan(9 * 1024 ** 2);
    expect(listObjects()).toEqual([expect.stringContaining(backup.id)]);
    expect(readdirSync(server.dataDir)).not.toContain("backups");

    const { status, body } = await server.api("GET", `${pathOf(addon)}/backups/${backup.id}/download`);
    expect(status, JSON.stringify(body)).toBe(200);
    expect(body.url).toMatch(new RegExp(`^${RegExp.escape(endpoint)}/kept/installation/.*X-Amz-Signature=`));
    const answer = await fetch(body.url);
    const bytes = Buffer.from(await answer.arrayBuffer());
    expect([answer.status, bytes.length]).toEqual([200, backup.size_bytes]);
    expect(createHash("sha256").update(bytes).digest("hex")).toBe(backup.sha256);
    const file = join(directory, "fetched.dump");
    writeFileSync(file, bytes);
    const listed = await run(["/usr/lib/postgresql/15/bin/pg_restore", "--list", file]);
    expect(listed.stdout).toMatch(/TABLE DATA public pens kontor/);
    const part = await fetch(body.url, { headers: { range: "bytes=0-4" } });
    expect([part.status, await part.text()]).toEqual([206, "PGDMP"]);
    expect((await fetch(body.url.replace(backup.id, addon.id))).status).toBe(403);

    await sql("drop table pens");
    await restoreAndWait(server, addon, backup);
    await running(server, addon);
    expect(
      await sql("select count(*)::int as pens, md5(string_agg(ink, '' order by n)) as ink from pens"),
    ).toEqual(held);

    const kept = await listBackups(server, addon);
    // The list has the newest backup first.
    expect(kept.map(({ kind, status: is }) => [kind, is])).toEqual([
      ["safety", "completed"],
      ["manual", "completed"],
    ]);
    expect((await server.api("DELETE", `${pathOf(addon)}/backups/${backup.id}`)).status).toBe(204);
    await eventually(
      async () => listObjects(),
      ({ length }) => length === 1,
    );
    expect((await server.api("DELETE", pathOf(addon))).status).toBe(204);
    await eventually(
      async () => listObjects(),
      ({ length }) => length === 0,
    );
    expect(server.log).not.toContain("X-Amz-Signature");
  },
);
