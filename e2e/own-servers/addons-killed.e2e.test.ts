/**
 * kill -9 of the server at the named points of add-ons, backups and restores, on real databases. The next server
 * completes or undoes the operation, loses no data, and leaves no orphans.
 */
import { existsSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Redis } from "ioredis";
import pg from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import {
  type Addon,
  type Backup,
  backedUp,
  beginBackup,
  beginRestore,
  createAddon,
  endOfBackup,
  endOfRestore,
  listAddons,
  listBackups,
  pathOf,
  running,
} from "../support/addons.ts";
import { eventually } from "../support/answers.ts";
import { machinesOf } from "../support/host-state.ts";
import { makeProject } from "../support/projects.ts";
import { type Server, startServer } from "../support/server.ts";

let server: Server;
let project: string;

beforeAll(async () => {
  const env = { KONTOR_POOL_SIZE: "0", KONTOR_ADDONS_PORTS: "25440-25449", KONTOR_RATE_LIMITS: "off" };
  server = await startServer(env, ["postgres-15", "redis-7"]);
  project = (await makeProject(server)).id;
});
afterAll(() => server?.destroy());
afterEach(() => server.start());

/** Kills the server at the point, before or after its response. The next server has started on return. */
const dyingAt = (point: string, act: () => Promise<unknown>) =>
  server.dieAt(point, () => act().catch(() => {}));

async function expectMachines(count: number): Promise<void> {
  await eventually(
    async () => machinesOf(server.dataDir).length,
    (there) => there === count,
  );
}

const volumes = () => {
  const directory = join(server.dataDir, "volumes/eu-1");
  return existsSync(directory) ? readdirSync(directory) : [];
};

async function remove(addon: Addon): Promise<void> {
  expect((await server.api("DELETE", pathOf(addon))).status).toBe(204);
  await expectNothing(addon);
}

async function expectNothing({ id }: Addon): Promise<void> {
  await eventually(
    () => server.sql("select 1 from addons where id = $1", [id]),
    ({ length }) => length === 0,
  );
  expect(volumes()).toEqual([]);
  await expectMachines(0);
}

async function onRedis<T>(url: string, work: (client: Redis) => Promise<T>): Promise<T> {
  const client = new Redis(url, { maxRetriesPerRequest: 20 });
  client.on("error", () => {});
  try {
    return await work(client);
  } finally {
    client.disconnect();
  }
}

async function onPostgres<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url });
  client.on("error", () => {});
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

describe("an add-on", () => {
  test.each(["addon.created", "addon.machine-started", "addon.admitted", "addon.up"])(
    "starts once when its server dies at %s",
    { timeout: 240_000 },
    async (point) => {
      const input = { kind: "redis", size: "small", public: true };
      await dyingAt(point, () => server.api("POST", `/api/v1/projects/${project}/addons`, { body: input }));
      const [addon, ...others] = await listAddons(server, project);
      expect(others).toEqual([]);
      const { public_connection_url: url } = await running(server, addon!);
      expect(await onRedis(url!, (client) => client.set("a", "1"))).toBe("OK");
      await expectMachines(1);
      expect(volumes()).toHaveLength(1);
      await remove(addon!);
    },
  );

  test.each(["addon.machine-removed", "addon.volume-dropped"])(
    "is deleted by the next server when its server dies at %s during the deletion",
    { timeout: 240_000 },
    async (point) => {
      const addon = await createAddon(server, project, { kind: "redis", size: "small" });
      await dyingAt(point, () => server.api("DELETE", pathOf(addon)));
      await expectNothing(addon);
      expect((await server.api("GET", pathOf(addon))).status).toBe(404);
    },
  );
});

test(
  "resumes the database of a suspended account in the same machine, even after kill -9 of the server",
  { timeout: 240_000 },
  async () => {
    const made = await createAddon(server, project, { kind: "redis", size: "small", public: true });
    const { public_connection_url: url } = await running(server, made);
    const machines = machinesOf(server.dataDir).map(({ spec }) => spec.id);
    await onRedis(url!, (client) => client.set("a", "1"));
    const suspend = (at: string) =>
      server.sql(
        `update workspaces set suspended_at = ${at} where owner_user_id = (select id from users where is_operator)`,
        [],
      );
    const isHeld = () => server.sql("select 1 from workspaces where held_since is not null", []);
    try {
      await suspend("now()");
      await eventually(isHeld, ({ length }) => length === 1);
      await server.kill9();
      await server.start();
      expect(await isHeld()).toHaveLength(1);
    } finally {
      await suspend("null");
    }
    await eventually(isHeld, ({ length }) => length === 0);
    await running(server, made);
    expect(await onRedis(url!, (client) => client.get("a"))).toBe("1");
    expect(machinesOf(server.dataDir).map(({ spec }) => spec.id)).toEqual(machines);
    await remove(made);
  },
);

interface Kind {
  kind: "postgres" | "redis";
  /** Writes text to the add-on, and returns its content after the write. */
  write: (addon: Addon, text: string) => Promise<unknown>;
  read: (addon: Addon) => Promise<string | null>;
  lose: (addon: Addon) => Promise<unknown>;
  /** Lists the old data that a restore moved aside. */
  beside: (addon: Addon) => Promise<string[]>;
}

const kinds: Kind[] = [
  {
    kind: "postgres",
    write: ({ public_connection_url: url }, text) =>
      onPostgres(url!, async (client) => {
        await client.query("create table if not exists pens (colour text)");
        await client.query("delete from pens");
        await client.query("insert into pens values ($1)", [text]);
      }),
    read: ({ public_connection_url: url }) =>
      onPostgres(url!, async (client) => {
        const { rows } = await client.query<{ colour: string }>("select colour from pens");
        return rows.length === 1 ? rows[0]!.colour : null;
      }),
    lose: ({ public_connection_url: url }) => onPostgres(url!, (client) => client.query("drop table pens")),
    beside: ({ public_connection_url: url }) =>
      onPostgres(url!, async (client) => {
        const { rows } = await client.query<{ name: string }>(
          "select datname as name from pg_database where datname like 'kontor\\_%'",
        );
        return rows.map(({ name }) => name);
      }),
  },
  {
    kind: "redis",
    write: ({ public_connection_url: url }, text) => onRedis(url!, (client) => client.set("pen", text)),
    read: ({ public_connection_url: url }) => onRedis(url!, (client) => client.get("pen")),
    lose: ({ public_connection_url: url }) => onRedis(url!, (client) => client.flushall()),
    beside: async () => [],
  },
];

describe.each(kinds)("backups of $kind", ({ kind, write, read, lose, beside }) => {
  let addon: Addon;
  const blobs = () => {
    const directory = join(server.dataDir, "backups");
    if (!existsSync(directory)) return [];
    const files = readdirSync(directory, { recursive: true, withFileTypes: true });
    return files.filter((file) => file.isFile()).map(({ name }) => name);
  };
  /** Checks that every listed backup has its bytes, and that no other bytes exist. */
  const expectBytes = async () => {
    const listed = (await listBackups(server, addon)).filter(({ status }) => status === "completed");
    const ids = new Set(listed.map(({ id }) => id));
    await eventually(
      async () => blobs().map((name) => name.split(".")[0] ?? ""),
      (there) => there.length === ids.size && there.every((id) => ids.has(id)),
    );
  };

  beforeAll(async () => {
    addon = await createAddon(server, project, { kind, size: "small", public: true });
    await write(addon, "blue");
  }, 120_000);
  afterAll(() => remove(addon), 60_000);

  // These points are the same for every kind; only a restore's swap differs.
  const once = (points: readonly string[]) => (kind === "postgres" ? points : []);

  test.each(once(["backup.begun", "backup.stored", "backup.verified", "backup.completed"]))(
    "the next server completes a backup whose server died at %s",
    { timeout: 240_000 },
    async (point) => {
      let id = "";
      await dyingAt(point, async () => (id = await beginBackup(server, addon)));
      expect(await endOfBackup(server, addon, id)).toMatchObject({ status: "completed", error: null });
      await expectBytes();
      await expectMachines(1);
    },
  );

  test(
    "a failing backup stays failed when the server dies at %s, and the next backup succeeds",
    { timeout: 240_000 },
    async () => {
      const store = join(server.dataDir, "backups");
      let id = "";
      await dyingAt("backup.failed", async () => {
        // A file in place of the directory makes every write fail.
        rmSync(store, { recursive: true, force: true });
        writeFileSync(store, "");
        await running(server, addon);
        id = await beginBackup(server, addon);
      });
      rmSync(store);
      expect(await endOfBackup(server, addon, id)).toMatchObject({ status: "failed" });
      for (const { id: without } of await listBackups(server, addon))
        expect((await server.api("DELETE", `${pathOf(addon)}/backups/${without}`)).status).toBe(204);
      await backedUp(server, addon);
      await expectBytes();
    },
  );

  test.each(once(["backup.unwanted", "backup.bytes-gone"]))(
    "a deleted backup does not exist after the server dies at %s",
    { timeout: 240_000 },
    async (point) => {
      const { id } = await backedUp(server, addon);
      await dyingAt(point, () => server.api("DELETE", `${pathOf(addon)}/backups/${id}`));
      expect((await listBackups(server, addon)).map((one) => one.id)).not.toContain(id);
      await expectBytes();
    },
  );

  test.each(["restore.begun", "restore.kept", "restore.in-place", "restore.completed"])(
    "a restore takes effect exactly once when the server dies at %s",
    { timeout: 300_000 },
    async (point) => {
      await write(addon, "blue");
      const backup: Backup = await backedUp(server, addon);
      await lose(addon);
      await dyingAt(point, async () => {
        await running(server, addon);
        await beginRestore(server, addon, backup);
      });
      expect(await endOfRestore(server, addon)).toMatchObject({ status: "completed", error: null });
      await running(server, addon);
      expect(
        await eventually(
          () => read(addon).catch(() => null),
          (text) => text !== null,
        ),
      ).toBe("blue");
      const kept = (await listBackups(server, addon)).filter((one) => one.kind === "safety");
      expect(kept[0]).toMatchObject({ status: "completed" });
      await eventually(
        () => beside(addon),
        ({ length }) => length === 0,
      );
      await expectBytes();
      await expectMachines(1);
    },
  );
});
