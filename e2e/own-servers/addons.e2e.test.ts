/**
 * Add-ons in use: real PostgreSQL and Redis with common clients, a killed server, killed databases, and full disks.
 */
import { randomUUID } from "node:crypto";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import pg from "pg";
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { run } from "@kontor/runtime/exec.ts";
import { processIn } from "../support/machine-processes.ts";
import { type Server, startServer } from "../support/server.ts";

let server: Server;
let project: string;
const addons: Record<string, Addon> = {};

interface Addon {
  id: string;
  status: string;
  error: string | null;
  host: string;
  connection_url: string;
  public_connection_url: string;
}

const path = (id = "") => `/api/v1/projects/${project}/addons${id === "" ? "" : `/${id}`}`;

/** Retries until `ask` does not throw. */
function eventually<T>(ask: () => T | Promise<T>, withinMs: number): Promise<T> {
  return vi.waitFor(ask, { timeout: withinMs, interval: 50 });
}

async function create(body: Record<string, unknown>): Promise<Addon> {
  const made = await server.api("POST", path(), { body });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  return made.body as Addon;
}

async function get(id: string): Promise<Addon> {
  const { status, body } = await server.api("GET", path(id));
  expect(status).toBe(200);
  return body as Addon;
}

async function running(id: string): Promise<Addon> {
  return eventually(async () => {
    const addon = await get(id);
    expect(addon.status, addon.error ?? "").toBe("running");
    return addon;
  }, 60_000);
}

async function sql(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000 });
  client.on("error", () => {});
  await client.connect();
  return client;
}

async function machineOf(id: string): Promise<string> {
  const [row] = await server.sql(
    "select id from machines where owner_kind = 'addon' and owner_id = $1 and desired = 'running'",
    [id],
  );
  return String(row?.["id"]);
}

beforeAll(async () => {
  const env = { KONTOR_ADDONS_PORTS: "25400-25409", KONTOR_POOL_SIZE: "0", KONTOR_RATE_LIMITS: "off" };
  server = await startServer(env, ["debian-12", "postgres-15", "redis-7"]);
  const made = await server.api("POST", "/api/v1/projects", { body: { name: "shop" } });
  if (made.status !== 201) throw new Error(JSON.stringify(made.body));
  project = made.body.id;
  for (const kind of ["postgres", "redis"]) {
    const startedAt = performance.now();
    const { id } = await create({ kind, public: true });
    addons[kind] = await running(id);
    console.log(`${kind}: create to running ${Math.round(performance.now() - startedAt)} ms`);
  }
});

afterAll(() => server?.destroy());

test("pg and psql connect to PostgreSQL, whose user has the rights of a database owner and no others", async () => {
  const { public_connection_url: url } = addons["postgres"]!;
  const client = await sql(url);
  onTestFinished(() => client.end());
  await client.query("create table orders (id int primary key, what text)");
  await client.query("insert into orders values (1, 'pen')");
  for (const extension of ["pg_trgm", "uuid-ossp", "pgcrypto", "hstore", "citext"]) {
    await client.query(`create extension "${extension}"`);
  }
  expect((await client.query("show data_checksums")).rows).toEqual([{ data_checksums: "on" }]);
  expect((await client.query("show fsync")).rows).toEqual([{ fsync: "on" }]);
  for (const refused of [
    "copy orders to program 'id'",
    "select pg_read_file('/etc/passwd')",
    "alter system set fsync = off",
    "create role other",
    "set role postgres",
  ]) {
    await expect(client.query(refused), refused).rejects.toThrow(/permission denied|must be/);
  }
  const psql = await run(["psql", "-XAtq", url, "-c", "select what from orders"]);
  expect(psql.stdout.trim()).toBe("pen");
  const wrong = new URL(url);
  wrong.password = "wrong";
  await expect(sql(wrong.href)).rejects.toThrow(/password authentication failed/);
  wrong.username = "postgres";
  await expect(sql(wrong.href)).rejects.toThrow(/no pg_hba.conf entry/);
});

test("ioredis connects to Redis, whose user cannot administer the server", async () => {
  const url = addons["redis"]!.public_connection_url;
  const client = new Redis(url, { maxRetriesPerRequest: 1 });
  onTestFinished(() => client.disconnect());
  await client.set("a", "1");
  expect(await client.get("a")).toBe("1");
  expect(await client.keys("*")).toEqual(["a"]);
  for (const refused of [
    ["config", "get", "*"],
    ["shutdown"],
    ["save"],
    ["acl", "list"],
    ["replicaof", "no", "one"],
  ]) {
    await expect(client.call(...(refused as [string])), refused.join(" ")).rejects.toThrow(/NOPERM/);
  }
  const nobody = new URL(url);
  const stranger = new Redis({
    host: nobody.hostname,
    port: Number(nobody.port),
    lazyConnect: true,
    retryStrategy: () => null,
  });
  stranger.on("error", () => {});
  onTestFinished(() => stranger.disconnect());
  await expect(stranger.get("a")).rejects.toThrow(/NOAUTH/);
});

test("a sandbox can reach no add-on by name or by address", async () => {
  const made = await server.api("POST", "/v1/sandboxes", { body: { template: "debian-12" } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  const { id } = made.body as { id: string };
  onTestFinished(async () => void (await server.api("DELETE", `/v1/sandboxes/${id}`)));
  const [row] = await server.sql(
    "select serves ->> 'address' as address from machines where serves is not null",
    [],
  );
  const tried = await server.api("POST", `/v1/sandboxes/${id}/exec`, {
    body: {
      command: `getent hosts ${addons["postgres"]!.host}; timeout 5 bash -c 'echo > /dev/tcp/${String(row?.["address"])}/5432' && echo reached; true`,
    },
  });
  expect(tried.status, JSON.stringify(tried.body)).toBe(200);
  expect((tried.body as { stdout: string }).stdout).toBe("");
});

test("a database killed under load is available within seconds, with every confirmed row", async () => {
  const { id, public_connection_url: url } = addons["postgres"]!;
  const setUp = await sql(url);
  await setUp.query("create table confirmed (id bigint primary key)");
  await setUp.end();
  const confirmed: number[] = [];
  let isWriting = true;
  const writers = [0, 1, 2, 3].map(async (writer) => {
    const client = await sql(url);
    for (let n = 0; isWriting; n += 1) {
      const key = writer * 1e9 + n;
      const ok = await client.query("insert into confirmed values ($1)", [key]).then(
        () => true,
        () => false,
      );
      if (!ok) break;
      confirmed.push(key);
    }
    await client.end().catch(() => {});
  });
  await sleep(1_500);
  process.kill(processIn(await machineOf(id), "/usr/lib/postgresql/15/bin/postgres"), "SIGKILL");
  const killedAt = performance.now();
  await Promise.all(writers);
  isWriting = false;
  const client = await eventually(async () => sql(url), 30_000);
  onTestFinished(() => client.end());
  console.log(`killed under load, answers again after ${Math.round(performance.now() - killedAt)} ms`);
  expect(confirmed.length).toBeGreaterThan(0);
  const { rows } = await client.query("select count(*)::int as there from confirmed where id = any($1)", [
    confirmed,
  ]);
  expect(rows).toEqual([{ there: confirmed.length }]);
  await running(id);
});

test("a killed server's successor adopts the running add-ons, with the same machines and files", async () => {
  const { id, public_connection_url: url } = addons["postgres"]!;
  const machine = await machineOf(id);
  const pid = processIn(machine, "/usr/lib/postgresql/15/bin/postgres");
  await server.kill9();
  await server.start();
  await running(id);
  expect(await machineOf(id)).toBe(machine);
  expect(processIn(machine, "/usr/lib/postgresql/15/bin/postgres")).toBe(pid);
  const client = await eventually(() => sql(url), 15_000);
  expect((await client.query("select what from orders")).rows).toEqual([{ what: "pen" }]);
  await client.end();
  const redis = new Redis(addons["redis"]!.public_connection_url);
  onTestFinished(() => redis.disconnect());
  expect(await redis.get("a")).toBe("1");
});

test("reports a full disk, keeps the written rows, and writes again after rows are deleted", async () => {
  const name = `tight-${randomUUID().slice(0, 8)}`;
  const { id } = await create({ kind: "postgres", name, size: "small", public: true });
  const { public_connection_url: url } = await running(id);
  const fill = async () => {
    const client = await sql(url);
    try {
      await client.query("create table if not exists filler (data text)");
      await client.query("alter table filler alter data set storage plain");
      // Inserts about 30 MB at a time, stored uncompressed, because PostgreSQL would compress the rows.
      const some = "insert into filler select repeat('x', 7000) from generate_series(1, 4000)";
      for (;;) await client.query(some);
    } finally {
      await client.end().catch(() => {});
    }
  };
  // Writes continue after the first refusal, because a checkpoint frees some of the log's space.
  await eventually(async () => {
    await expect(fill()).rejects.toThrow(
      /could not extend file|No space left|Connection terminated|read-only/,
    );
    expect((await get(id)).error).toMatch(/disk is full/);
  }, 60_000);
  const client = await eventually(() => sql(url), 60_000);
  onTestFinished(() => client.end());
  expect((await client.query("select count(*) > 0 as kept from filler")).rows).toEqual([{ kept: true }]);
  await client.query("set default_transaction_read_only = off");
  await client.query("truncate filler");
  await eventually(
    async () => expect(await get(id)).toMatchObject({ status: "running", error: null }),
    60_000,
  );
  const again = await sql(url);
  onTestFinished(() => again.end());
  await again.query("insert into filler values ('there is room')");
}, 240_000);

test("an add-on that is no longer public is unreachable, and a deleted add-on leaves no data", async () => {
  const { id, public_connection_url: url } = addons["redis"]!;
  const closed = await server.api("PATCH", path(id), { body: { public: false } });
  expect(closed.body).toMatchObject({ public: false, public_connection_url: null });
  const client = new Redis(url, { lazyConnect: true, retryStrategy: () => null });
  client.on("error", () => {});
  await expect(client.connect()).rejects.toThrow(/closed|ECONNREFUSED/);
  const restarted = await server.api("POST", `${path(id)}/restart`);
  expect(restarted.body).toMatchObject({ status: "running" });
  expect((await server.api("DELETE", path(id))).status).toBe(204);
  expect((await server.api("GET", path(id))).status).toBe(404);
  await eventually(async () => {
    expect(await server.sql("select 1 from addons where id = $1", [id])).toEqual([]);
    const volumes = join(server.dataDir, "volumes/eu-1");
    expect(readdirSync(volumes)).not.toContain(`addon_${id.replaceAll("-", "")}`);
  }, 30_000);
  const password = new URL(addons["postgres"]!.connection_url).password;
  expect(server.log).not.toContain(password);
});
