import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { clientOptions } from "../db.ts";
import { ensureEmbedded, type EmbeddedPostgres, stopEmbedded } from "./ensure-embedded.ts";
import { exists } from "./postmaster.ts";

let dataDir: string;
let children: ChildProcess[];
beforeEach(() => {
  children = [];
  dataDir = mkdtempSync(join(tmpdir(), "kontor-embedded-"));
  chmodSync(dataDir, 0o711);
});
afterEach(async () => {
  for (const child of children) child.kill("SIGKILL");
  await stopEmbedded(dataDir);
  rmSync(dataDir, { recursive: true, force: true });
});

/** Starts another process that calls `ensureEmbedded`, as a server does. */
async function spawnServer(): Promise<{ child: ChildProcess; postgres: EmbeddedPostgres }> {
  const program = join(import.meta.dirname, "../../../test/programs/ensure-postgres.ts");
  const child = spawn(process.execPath, [program, dataDir], { stdio: ["ignore", "pipe", "inherit"] });
  children.push(child);
  const [line] = (await once(child.stdout!, "data")) as [Buffer];
  return { child, postgres: JSON.parse(line.toString()) as EmbeddedPostgres };
}

async function query(postgres: EmbeddedPostgres, text: string, values: unknown[] = []): Promise<unknown[]> {
  const client = new pg.Client(clientOptions(postgres.connection));
  client.on("error", () => {});
  await client.connect();
  try {
    return (await client.query(text, values)).rows;
  } finally {
    await client.end().catch(() => {});
  }
}

test("shares one PostgreSQL among three servers that start at once on an empty directory", async () => {
  const servers = await Promise.all([spawnServer(), spawnServer(), spawnServer()]);
  const pids = new Set(servers.map(({ postgres }) => postgres.pid));
  expect(pids.size).toBe(1);
  expect(servers.filter(({ postgres }) => !postgres.adopted)).toHaveLength(1);
});

test("keeps PostgreSQL running after a kill -9 of the server, for the next server to adopt", async () => {
  const { child, postgres } = await spawnServer();
  child.kill("SIGKILL");
  await once(child, "exit");
  expect(exists(postgres.pid)).toBe(true);
  expect(await ensureEmbedded(dataDir)).toEqual({ ...postgres, adopted: true });
});

test("restarts PostgreSQL after a kill -9 with every acknowledged row", async () => {
  const first = await ensureEmbedded(dataDir);
  await query(first, "create table row (n int)");
  let acknowledged = 0;
  const inserting = (async () => {
    const client = new pg.Client(clientOptions(first.connection));
    client.on("error", () => {});
    await client.connect();
    for (let n = 1; ; n += 1) {
      await client.query("insert into row values ($1)", [n]);
      acknowledged = n;
    }
  })();
  const outcome = inserting.then(
    () => "goes on",
    () => "broken",
  );
  await vi.waitFor(() => expect(acknowledged).toBeGreaterThan(50), 30_000);
  process.kill(first.pid, "SIGKILL");
  expect(await outcome).toBe("broken");

  const second = await ensureEmbedded(dataDir);
  expect(second.pid).not.toBe(first.pid);
  expect(second.adopted).toBe(false);
  const rows = await query(second, "select from row where n <= $1", [acknowledged]);
  expect(rows).toHaveLength(acknowledged);
});

test("starts despite a lock file with the pid of another program", async () => {
  await ensureEmbedded(dataDir);
  await stopEmbedded(dataDir);
  // After a reboot, any process may have this pid: here it is this test's own.
  const data = join(dataDir, "postgres/data");
  writeFileSync(join(data, "postmaster.pid"), `${process.pid}\n${data}\n1\n5432\n/run/nowhere\n\n\nready\n`);
  expect((await ensureEmbedded(dataDir)).adopted).toBe(false);
});

test("lets only the accounts of the server and PostgreSQL reach the socket or read the data", async () => {
  const { connection } = await ensureEmbedded(dataDir);
  if (!("socketDirectory" in connection)) throw new Error("a socket");
  for (const path of [
    connection.socketDirectory,
    join(dataDir, "postgres/data"),
    join(dataDir, "postgres/log"),
  ]) {
    expect(statSync(path).mode & 0o077, path).toBe(0);
  }
  expect(await query({ connection, pid: 0, adopted: true }, "show listen_addresses")).toEqual([
    { listen_addresses: "" },
  ]);
});

test("stops the process and removes the socket, and accepts a second stop", async () => {
  const { pid, connection } = await ensureEmbedded(dataDir);
  expect(await stopEmbedded(dataDir)).toEqual({ stopped: true });
  expect(exists(pid)).toBe(false);
  expect(() => statSync((connection as { socketDirectory: string }).socketDirectory)).toThrow("ENOENT");
  expect(await stopEmbedded(dataDir)).toEqual({ stopped: false });
});

test("leaves data of another major version unchanged, and names that version in the error", async () => {
  mkdirSync(join(dataDir, "postgres/data"), { recursive: true });
  writeFileSync(join(dataDir, "postgres/data/PG_VERSION"), "13\n");
  await expect(ensureEmbedded(dataDir)).rejects.toThrow("was created by PostgreSQL 13");
});

test.runIf(process.getuid?.() === 0)(
  "names a directory that PostgreSQL's account cannot enter, and the cure",
  async () => {
    chmodSync(dataDir, 0o700);
    await expect(ensureEmbedded(dataDir)).rejects.toThrow(
      `may not enter ${dataDir}; allow it with chmod o+x`,
    );
  },
);
