/** Functions on real machines: their memory survives every sleep, and a faulty function harms no other. */
import http from "node:http";
import { truncateSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ask, type FunctionHost, functionHost, handlerImage, makeLive } from "../support/function-host.ts";
import { eventually } from "../support/answers.ts";

const code = `
import { readFileSync, writeFileSync } from "node:fs";
let n = 0;
setInterval(() => {}, 10);
export default async (request) => {
  const { pathname } = new URL(request.url);
  if (pathname === "/exit") process.exit(3);
  if (pathname === "/loop") for (;;);
  if (pathname === "/hog") { const held = []; for (;;) held.push(Buffer.alloc(16 << 20, 1)); }
  if (pathname === "/echo") return new Response(request.body);
  if (pathname === "/who") {
    let wrote = "no";
    try { writeFileSync("/app/handler.mjs", ""); wrote = "yes"; } catch {}
    writeFileSync("/tmp/own", "kept");
    return { uid: process.getuid(), wrote, own: readFileSync("/tmp/own", "utf8"), argv: process.argv.length };
  }
  n += 1;
  return String(n);
};`;

let host: FunctionHost;
let image: string;
const opened = new AsyncDisposableStack();
afterAll(() => opened.disposeAsync(), 120_000);
beforeAll(async () => {
  host = await functionHost({ cpuOvercommit: "100", memoryOvercommit: "10" });
  opened.defer(() => host.close());
  image = await handlerImage(host, code);
}, 240_000);

const minutes = 2 * 60_000;
const machines = async () => (await host.app.machines.host.list()).length;

async function stateOf(id: string): Promise<string[]> {
  const rows = await host.db
    .selectFrom("function_instances")
    .select("state")
    .where("function_id", "=", id)
    .execute();
  return rows.map(({ state }) => state);
}

async function setIdle(id: string, seconds: number): Promise<void> {
  await host.db
    .updateTable("functions")
    .set({ idle_timeout_seconds: seconds })
    .where("id", "=", id)
    .execute();
  await host.instances.changed(id);
}

async function freeze({ id }: { id: string }): Promise<void> {
  await setIdle(id, 0);
  await eventually(
    () => stateOf(id),
    (states) => states[0] === "frozen",
  );
  await setIdle(id, 300);
}

/** Waits until the instance is on disk and uses no memory of the host. */
async function rest(made: { id: string }): Promise<void> {
  await freeze(made);
  expect(await host.app.machines.reclaimMemory()).toBe(true);
  expect(await stateOf(made.id)).toEqual(["asleep"]);
}

test(
  "an instance's memory survives a freeze, a pause to disk and a server restart, and is never duplicated",
  async () => {
    const made = await makeLive(host, image);
    expect(await ask(host, made.host)).toMatchObject({ status: 200, body: "1" });
    await host.restart();
    expect(await ask(host, made.host)).toMatchObject({ body: "2" });
    await freeze(made);
    expect(await ask(host, made.host)).toMatchObject({ body: "3" });
    await freeze(made);
    await host.restart();
    expect(await stateOf(made.id)).toEqual(["frozen"]);
    expect(await ask(host, made.host)).toMatchObject({ body: "4" });
    await rest(made);
    await eventually(machines, (count) => count === 0);
    expect(await ask(host, made.host)).toMatchObject({ body: "5" });
    await rest(made);
    await host.restart();
    expect(await ask(host, made.host)).toMatchObject({ body: "6" });
    expect(await machines()).toBe(1);
    await host.instances.stop(made.id);
    expect(await machines()).toBe(0);
    expect(await readdir(join(host.dataDir, "snapshots"))).toEqual([]);
  },
  minutes,
);

test(
  "responds 503 for a function of a suspended account, and keeps its memory until the suspension ends",
  async () => {
    const made = await makeLive(host, image);
    expect(await ask(host, made.host)).toMatchObject({ body: "1" });
    const suspend = (at: Date | null) =>
      host.db
        .updateTable("workspaces")
        .set({ suspended_at: at })
        .where("id", "in", (eb) =>
          eb.selectFrom("functions").select("workspace_id").where("id", "=", made.id),
        )
        .execute();
    const status = () => ask(host, made.host).then((answer) => answer.status);
    await suspend(new Date());
    await eventually(status, (seen) => seen === 503);
    await host.restart();
    expect(await ask(host, made.host)).toMatchObject({
      status: 503,
      body: expect.stringContaining("account_suspended"),
    });
    await suspend(null);
    await eventually(status, (seen) => seen === 200);
    const { body } = await ask(host, made.host);
    // The counter continues. The number of requests between the two readings is not known.
    expect(Number(body)).toBeGreaterThan(2);
    await host.instances.stop(made.id);
  },
  minutes,
);

test(
  "wakes a function on disk once for a thousand requests, fifty at a time",
  async () => {
    const made = await makeLive(host, image);
    await ask(host, made.host);
    await rest(made);
    const agent = new http.Agent({ keepAlive: true, maxSockets: 50 });
    const answers = await Promise.all(
      Array.from({ length: 1000 }, () => ask(host, made.host, "/", { agent })),
    );
    agent.destroy();
    expect(answers.filter(({ status }) => status !== 200)).toEqual([]);
    expect(new Set(answers.map(({ body }) => body)).size).toBe(1000);
    expect(answers.map(({ body }) => Number(body)).toSorted((a, b) => a - b)[0]).toBe(2);
    expect(await stateOf(made.id)).toEqual(["running"]);
    await host.instances.stop(made.id);
  },
  minutes,
);

test(
  "runs a function unprivileged with read-only code and a writable directory, and passes bodies unchanged",
  async () => {
    const made = await makeLive(host, image, { isProved: true });
    const { body } = await ask(host, made.host, "/who");
    expect(JSON.parse(body)).toEqual({ uid: 65_534, wrote: "no", own: "kept", argv: 2 });
    const text = "ü".repeat(1_000_000);
    const echoed = await ask(host, made.host, "/echo", { method: "POST", body: text });
    expect(echoed.body === text).toBe(true);
    await host.instances.stop(made.id);
  },
  minutes,
);

test(
  "an instance that loops, exits or exhausts memory fails only its own request",
  async () => {
    const made = await makeLive(host, image, { timeout_seconds: 2, memory_mb: 256 });
    expect((await ask(host, made.host)).status).toBe(200);
    for (const [path, statuses] of [
      ["/loop", [504]],
      ["/exit", [502]],
      ["/hog", [502, 504]],
    ] as const) {
      expect(statuses).toContain((await ask(host, made.host, path)).status);
      expect(await ask(host, made.host)).toMatchObject({ status: 200, body: "1" });
    }
    await host.instances.stop(made.id);
  },
  minutes,
);

test(
  "starts a new instance if the snapshot is damaged, and logs the reason",
  async () => {
    const made = await makeLive(host, image);
    await ask(host, made.host);
    await rest(made);
    const snapshots = join(host.dataDir, "snapshots");
    for (const name of await readdir(snapshots)) {
      for (const file of await readdir(join(snapshots, name))) {
        if (file.endsWith(".img")) truncateSync(join(snapshots, name, file), 4096);
      }
    }
    expect(await ask(host, made.host)).toMatchObject({ status: 200, body: "1" });
    const { lines } = await host.instances.ring(made.id).tail(10);
    expect(lines.map(({ text }) => text)).toContain(
      "The function could not be woken from its memory, and is started again.",
    );
    await host.instances.stop(made.id);
  },
  minutes,
);
