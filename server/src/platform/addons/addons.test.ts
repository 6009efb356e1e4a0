import { once } from "node:events";
import { connect } from "node:net";
import { beforeEach, expect, test, vi } from "vitest";
import { systemActor } from "#accounts/activity/activity.ts";
import { setSuspended } from "#accounts/workspaces.ts";
import { testDatabase } from "../../../test/harness.ts";
import { createEnvironment } from "../environments/create.ts";
import { variablesOf } from "../environments/variables.ts";
import { deleteProject } from "../projects/delete.ts";
import { updateProject } from "../projects/update.ts";
import { personOn } from "../testing/platform-app.ts";
import { removeAddon, deleteAddon, removeProjectAddons } from "./delete.ts";
import { requireAddon } from "./find.ts";
import { restartAddon } from "./restart.ts";
import { toAddon, toAddonWithUrls } from "./schema.ts";
import { addonsHost, make, projectOf } from "./testing/addons-host.ts";
import { updateAddon } from "./update.ts";
import { volumeOf } from "./instances/volume.ts";

const { db } = await testDatabase();
const host = await addonsHost(db);
const refusal = (code: string, status: number) => expect.objectContaining({ code, status });
/** Matches a validation error of this field of the body. */
const badField = (...path: string[]) =>
  expect.objectContaining({ problems: [expect.objectContaining({ place: "body", path })] });
const parts = { deleteBackups: async () => {} };

beforeEach(() => {
  host.simulation.room = { isFull: false, freeBytes: 1e9 };
  host.simulation.failsNextStart = undefined;
});

async function onTeam() {
  const actor = await personOn(db, "team");
  return { actor, project: await projectOf(host, actor) };
}

const rowOf = (id: string) => db.selectFrom("addons").selectAll().where("id", "=", id).executeTakeFirst();

async function up(id: string): Promise<void> {
  await vi.waitFor(async () => expect((await rowOf(id))?.status).toBe("running"), 20_000);
}

async function machineOf(id: string): Promise<string | undefined> {
  const row = await db
    .selectFrom("machines")
    .selectAll()
    .where("owner_id", "=", id)
    .where("desired", "=", "running")
    .executeTakeFirst();
  return row?.id;
}

test("creates an add-on as provisioning, then starts its native machine with a volume and without outbound network", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "postgres", name: "orders", purpose: "orders" });
  expect(toAddon(made)).toMatchObject({
    status: "provisioning",
    name: "orders",
    kind: "postgres",
    version: "15",
    size: "large",
    host: `orders.${project.name}.internal`,
    port: 5432,
    username: "kontor",
    options: { purpose: "orders" },
  });
  await up(made.id);
  const specs = (await host.driver.list()).map(({ spec }) => spec);
  const spec = specs.find((one) => one?.volume?.directory.endsWith(volumeOf(made)));
  expect(spec).toMatchObject({ isolation: "native", network: "off", env: {} });
  expect(spec?.volume?.directory).toContain("us-1");
  expect(await rowOf(made.id)).toMatchObject({ is_made: true, error: null });
  expect(host.simulation.admitted).toContain("kontor");
  expect(host.addons.guest(made.id)).toBeDefined();
});

test("returns a connection URL that opens the database, and stores no password in plain text", async () => {
  const { actor, project } = await onTeam();
  const { id } = await make(host, actor, project.id, { kind: "redis" });
  const view = await requireAddon(host.app, actor, project.id, id);
  const { connection_url } = toAddonWithUrls(host.app, view);
  const url = new URL(connection_url);
  expect(url.protocol).toBe("redis:");
  expect(url.username).toBe("kontor");
  expect(url.password).toMatch(/^[A-Za-z0-9]{32}$/);
  expect(url.host).toBe(`redis.${project.name}.internal:6379`);
  expect(JSON.stringify(toAddon(view))).not.toContain(url.password);
  const { rows } = await db.executeQuery<{ text: string }>({
    sql: "select a::text as text from addons a union all select t::text from activity t",
    parameters: [],
    query: {} as never,
    queryId: { queryId: "canary" },
  });
  expect(rows.map(({ text }) => text).join()).not.toContain(url.password);
});

test("limits number and size of add-ons by plan, and refuses a second add-on of one name in a project", async () => {
  const starter = await personOn(db, "starter");
  const theirs = await projectOf(host, starter);
  await expect(make(host, starter, theirs.id, { kind: "redis" })).rejects.toThrow(refusal("plan_limit", 403));
  const pro = await personOn(db, "pro");
  const project = await projectOf(host, pro);
  await expect(make(host, pro, project.id, { kind: "redis", size: "large" })).rejects.toThrow(
    refusal("plan_limit", 403),
  );
  const first = await make(host, pro, project.id, { kind: "redis" });
  expect(first).toMatchObject({ name: "redis", size: "medium" });
  await expect(make(host, pro, project.id, { kind: "postgres", name: "redis" })).rejects.toThrow(
    refusal("addon_exists", 409),
  );
  expect(await make(host, pro, project.id, { kind: "redis" })).toMatchObject({ name: "redis-2" });
  await expect(make(host, pro, project.id, { kind: "redis" })).rejects.toThrow(refusal("plan_limit", 403));
  await deleteAddon(host.addons, pro, project.id, first.id);
  expect(await make(host, pro, project.id, { kind: "redis" })).toMatchObject({ name: "redis" });
});

test("names the invalid field, and returns 404 for another user's add-on", async () => {
  const { actor, project } = await onTeam();
  await expect(make(host, actor, project.id, { kind: "postgres", version: "9" })).rejects.toThrow(
    badField("version"),
  );
  const environment_id = "99999999-9999-4999-8999-999999999999";
  await expect(make(host, actor, project.id, { kind: "postgres", environment_id })).rejects.toThrow(
    refusal("environment_not_found", 404),
  );
  const made = await make(host, actor, project.id, { kind: "postgres" });
  const stranger = await onTeam();
  await expect(requireAddon(host.app, stranger.actor, project.id, made.id)).rejects.toThrow(
    refusal("project_not_found", 404),
  );
  await expect(requireAddon(host.app, stranger.actor, stranger.project.id, made.id)).rejects.toThrow(
    refusal("addon_not_found", 404),
  );
  const suspended = { ...actor, workspaces: [{ ...actor.workspaces[0]!, suspended: true }] };
  await expect(make(host, suspended, project.id, { kind: "redis" })).rejects.toThrow(
    refusal("account_suspended", 402),
  );
});

test("restarts a crashed process in its machine, and starts a new machine on the same volume after a lost one", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "postgres" });
  await up(made.id);
  const machine = (await machineOf(made.id))!;
  const running = host.addons.running(made.id)!;
  const command = running.command!;
  await running.guest()!.signalCommand(command, 9);
  await vi.waitFor(() => expect(running.command).not.toBe(command), 10_000);
  await vi.waitFor(() => expect(running.isUp).toBe(true), 10_000);
  expect(await machineOf(made.id)).toBe(machine);
  expect(await rowOf(made.id)).toMatchObject({ status: "running", error: null, restart_count: 1 });
  host.driver.end(machine, "failed");
  await vi.waitFor(async () => expect(await machineOf(made.id)).not.toBe(machine), 10_000);
  await up(made.id);
  expect(await rowOf(made.id)).toMatchObject({ restart_count: 2 });
}, 40_000);

test("reports missing database files as an error, and creates no empty ones", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "postgres" });
  await up(made.id);
  const machine = (await machineOf(made.id))!;
  const { spec } = (await host.driver.list()).find(({ id }) => id === machine)!;
  const { rename } = await import("node:fs/promises");
  await rename(spec!.volume!.directory, `${spec!.volume!.directory}-aside`);
  host.driver.end(machine, "failed");
  await vi.waitFor(
    async () =>
      expect(await rowOf(made.id)).toMatchObject({
        status: "failed",
        error: expect.stringContaining("volume's data is missing on the host"),
      }),
    10_000,
  );
  await rename(`${spec!.volume!.directory}-aside`, spec!.volume!.directory);
  host.addons.running(made.id)!.skipBackoff();
  await up(made.id);
}, 40_000);

test("reports the reason of a failed start, retries it, and notifies the owner", async () => {
  const { actor, project } = await onTeam();
  host.simulation.failsNextStart = "no such file";
  const made = await make(host, actor, project.id, { kind: "redis" });
  await vi.waitFor(async () => expect((await rowOf(made.id))?.error).toBe("no such file"), 10_000);
  await up(made.id);
  expect(await rowOf(made.id)).toMatchObject({ error: null });
});

test("stops the process during work on its files, and starts it afterwards", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "redis" });
  await up(made.id);
  const running = host.addons.running(made.id)!;
  const before = running.command;
  const seen = await host.addons.whileStopped(made.id, async (guest) => {
    expect((await guest.getCommand(before!)).status).not.toBe("running");
    expect(host.addons.guest(made.id)).toBeUndefined();
    return (await rowOf(made.id))?.status;
  });
  expect(seen).toBe("stopped");
  expect(running.isUp).toBe(true);
  expect(running.command).not.toBe(before);
  expect(await rowOf(made.id)).toMatchObject({ status: "running", restart_count: 0 });
  await expect(host.addons.whileStopped("nobody", async () => {})).rejects.toThrow(
    refusal("addon_not_running", 409),
  );
});

test("keeps an add-on running when its process cannot be stopped", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "redis" });
  await up(made.id);
  const running = host.addons.running(made.id)!;
  const { command } = running;
  const guest = running.guest()!;
  const deaf = Object.assign(Object.create(guest) as typeof guest, {
    getCommand: (id: string) => guest.getCommand(id),
    signalCommand: () => Promise.reject(new Error("the guest is silent")),
  });
  const asking = vi.spyOn(running, "guest").mockReturnValue(deaf);
  await expect(host.addons.whileStopped(made.id, async () => {})).rejects.toThrow("the guest is silent");
  asking.mockRestore();
  expect(await rowOf(made.id)).toMatchObject({ status: "running", restart_count: 0 });
  expect(host.addons.guest(made.id)).toBeDefined();
  await running.guest()!.signalCommand(command!, 9);
  await vi.waitFor(async () => expect(await rowOf(made.id)).toMatchObject({ restart_count: 1 }), 10_000);
  await up(made.id);
}, 30_000);

test("creates a throwaway instance that is empty, has no row and leaves no machine or files", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "postgres" });
  await up(made.id);
  expect(host.simulation.wasThrowaway).toBe(false);
  const before = (await host.driver.list()).length;
  {
    await using throwaway = await host.addons.throwaway(made, new AbortController().signal);
    await throwaway.guest.ping();
    expect(host.simulation.wasThrowaway).toBe(true);
    expect(await host.driver.list()).toHaveLength(before + 1);
  }
  expect(await host.driver.list()).toHaveLength(before);
  const forgotten = await host.addons.throwaway(made, new AbortController().signal);
  await forgotten.guest.ping();
  await host.restart();
  await vi.waitFor(async () => {
    const rows = await db.selectFrom("machines").select("owner_id").execute();
    expect(rows.filter(({ owner_id }) => owner_id?.startsWith("try_"))).toEqual([]);
  }, 10_000);
}, 30_000);

test("reports a full disk, notifies the owner, and clears the error when the disk has space again", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "postgres" });
  await up(made.id);
  host.simulation.room = { isFull: true, freeBytes: 0 };
  await vi.waitFor(async () => expect((await rowOf(made.id))?.error).toMatch(/disk is full/), 15_000);
  expect(host.simulation.heeded.at(-1)).toMatchObject({ isFull: true });
  const notifications = await db
    .selectFrom("notifications")
    .select("title")
    .where("workspace_id", "=", made.workspace_id)
    .execute();
  expect(notifications.map(({ title }) => title)).toEqual([`postgres of ${project.name} has a full disk`]);
  host.simulation.room = { isFull: false, freeBytes: 1e9 };
  await vi.waitFor(async () => expect((await rowOf(made.id))?.error).toBeNull(), 15_000);
}, 40_000);

test("starts the add-ons of an earlier server", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "postgres" });
  await up(made.id);
  await host.restart();
  await vi.waitFor(() => expect(host.addons.guest(made.id)).toBeDefined(), 10_000);
  await up(made.id);
}, 30_000);

test("starts no machine and counts no failure while the workspace is suspended", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "postgres" });
  await up(made.id);
  const suspend = async (isSuspended: boolean) => {
    await setSuspended(host.app, systemActor("test"), actor.workspaces[0]!.id, isSuspended);
    await host.app.machines.suspension.look({ addon: host.addons.machineOwner });
  };
  await suspend(true);
  host.driver.end((await machineOf(made.id))!, "failed");
  await vi.waitFor(async () => expect(await machineOf(made.id)).toBeUndefined(), 10_000);
  // The next server finds no machine either, and waits as well.
  await host.restart();
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  expect(await machineOf(made.id)).toBeUndefined();
  expect(await rowOf(made.id)).toMatchObject({ status: "running", error: null, restart_count: 0 });
  await suspend(false);
  await vi.waitFor(() => expect(host.addons.guest(made.id)).toBeDefined(), 10_000);
  expect(await rowOf(made.id)).toMatchObject({ status: "running", restart_count: 0 });
}, 40_000);

test("hides a deleted add-on at once, and then removes its machine and files", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "postgres" });
  await up(made.id);
  await deleteAddon(host.addons, actor, project.id, made.id);
  await expect(deleteAddon(host.addons, actor, project.id, made.id)).rejects.toThrow(
    refusal("addon_not_found", 404),
  );
  const activity = await db
    .selectFrom("activity")
    .select("detail")
    .where("action", "=", "addon.deleted")
    .where("target_id", "=", made.id)
    .executeTakeFirstOrThrow();
  expect(activity.detail).toMatchObject({ kind: "postgres", destroyed: { database: "kontor" } });
  await removeAddon(host.addons, made.id, parts);
  expect(await rowOf(made.id)).toBeUndefined();
  expect(await machineOf(made.id)).toBeUndefined();
  expect((await host.app.machines.host.listVolumes()).map(({ id }) => id)).not.toContain(volumeOf(made));
  await removeAddon(host.addons, made.id, parts);
});

test("completes the removal of an add-on at the attempt after a failed one", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "postgres" });
  await up(made.id);
  await deleteAddon(host.addons, actor, project.id, made.id);
  const failing = { deleteBackups: () => Promise.reject(new Error("the store is down")) };
  await expect(removeAddon(host.addons, made.id, failing)).rejects.toThrow("the store is down");
  expect(await rowOf(made.id)).toBeDefined();
  await host.restart();
  await removeAddon(host.addons, made.id, parts);
  expect(await rowOf(made.id)).toBeUndefined();
});

test("connects to an add-on in its workspace's private network by the add-on's name and address", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "postgres", name: "orders" });
  await up(made.id);
  const { spec } = (await host.driver.list()).find(({ spec: one }) =>
    one?.volume?.directory.endsWith(volumeOf(made)),
  )!;
  const { port } = host.addons.engines.postgres;
  expect(spec?.privateNetwork).toEqual({
    group: made.workspace_id,
    serves: {
      name: `orders.${project.name}.internal`,
      address: expect.stringMatching(/^198\.(18|19)\./),
      ports: [port],
    },
  });
  await expect(
    updateProject(host.app, actor, project.id, { name: `${project.name}x` } as never),
  ).rejects.toThrow(refusal("project_has_addons", 409));
});

test("gives processes the URLs of their environment's add-ons, unless the owner sets the same variable", async () => {
  const { actor, project } = await onTeam();
  const environment = project.production_environment_id;
  const main = await make(host, actor, project.id, { kind: "postgres" });
  await make(host, actor, project.id, { kind: "postgres", name: "order-log" });
  await make(host, actor, project.id, { kind: "redis", environment_id: environment });
  const variables = await variablesOf(host.app, db, environment);
  expect(Object.keys(variables).sort()).toEqual(["DATABASE_URL", "ORDER_LOG_DATABASE_URL", "REDIS_URL"]);
  expect(new URL(variables["DATABASE_URL"]!).hostname).toBe(`postgres.${project.name}.internal`);
  const staging = await createEnvironment(host.app, actor, project.id, {
    name: "staging",
    kind: "staging",
    branch: "next",
    env_vars: { DATABASE_URL: "mine" },
  });
  expect(await variablesOf(host.app, db, staging.id)).toMatchObject({ DATABASE_URL: "mine" });
  expect(await variablesOf(host.app, db, staging.id)).not.toHaveProperty("REDIS_URL");
  await deleteAddon(host.addons, actor, project.id, main.id);
  expect(new URL((await variablesOf(host.app, db, environment))["DATABASE_URL"]!).hostname).toBe(
    `order-log.${project.name}.internal`,
  );
});

test("keeps a public port open only while its add-on is public", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "redis", public: true });
  await up(made.id);
  const url = new URL(toAddonWithUrls(host.app, made).public_connection_url!);
  expect(url.hostname).toBe("127.0.0.1");
  const visit = async () => {
    const ended = once(connect(Number(url.port), url.hostname).resume(), "end");
    return ended.then(
      () => true,
      () => false,
    );
  };
  await vi.waitFor(async () => expect(await visit()).toBe(true), 5_000);
  const closed = await updateAddon(host.addons, actor, project.id, made.id, { public: false });
  expect(toAddonWithUrls(host.app, closed).public_connection_url).toBeNull();
  expect(await visit()).toBe(false);
  await updateAddon(host.addons, actor, project.id, made.id, { public: true });
  expect(await visit()).toBe(true);
  await deleteAddon(host.addons, actor, project.id, made.id);
  expect(await visit()).toBe(false);
  // The machine is removed at once, before the job runs.
  await vi.waitFor(async () => expect(await machineOf(made.id)).toBeUndefined(), 10_000);
  await removeAddon(host.addons, made.id, parts);
  expect(await visit()).toBe(false);
});

test("refuses a public add-on when all public ports are taken", async () => {
  const { actor, project } = await onTeam();
  for (let n = 0; n < 3; n += 1) await make(host, actor, project.id, { kind: "redis", public: true });
  await expect(make(host, actor, project.id, { kind: "redis", public: true })).rejects.toThrow(
    refusal("no_public_port", 409),
  );
});

test("responds to a restart once the add-on runs, and skips the backoff", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "redis" });
  await up(made.id);
  const before = host.addons.running(made.id)!.command;
  expect(await restartAddon(host.addons, actor, project.id, made.id)).toMatchObject({ status: "running" });
  expect(host.addons.running(made.id)!.command).not.toBe(before);
});

test("deletes the add-ons of a deleted project", async () => {
  const { actor, project } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "redis" });
  await deleteProject(host.app, actor, project.id);
  await removeProjectAddons(host.addons, project.id, parts);
  expect(await rowOf(made.id)).toBeUndefined();
});
