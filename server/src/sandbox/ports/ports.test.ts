import { expect, onTestFinished, test, vi } from "vitest";
import { createServer, type AddressInfo } from "node:net";
import type { Actor } from "#accounts/actor.ts";
import type { SandboxTier } from "#accounts/roles.ts";
import { testDatabase } from "../../../test/harness.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { pauseSandbox } from "../sandboxes/lifecycle/pause.ts";
import { getSandbox } from "../sandboxes/sandboxes.ts";
import { toSandbox } from "../sandboxes/schema.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { exposePort } from "./ports.ts";
import { VisitedSandboxes } from "./visitor-targets.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const { app } = host;

async function sandbox(actor: Actor, input: Record<string, unknown> = {}) {
  const row = await createSandbox(app, actor, createInput(input));
  return { id: row.id, name: row.id.replace("sbx_", ""), row };
}

const person = (tier: SandboxTier = "payg") => personWithTier(db, tier);
/** Counts the database queries of a look-up. */
const spyOnQueries = () => vi.spyOn(db, "selectFrom");

test("builds a port's host from the port, the sandbox and the installation's domain", async () => {
  const { actor } = await person();
  const { id, name, row } = await sandbox(actor);
  expect(await exposePort(app, actor, id, 3000)).toEqual({
    port: 3000,
    host: `3000-${name}.sbx.localhost:8443`,
    url: `https://3000-${name}.sbx.localhost:8443`,
  });
  const base = `${name}.sbx.localhost:8443`;
  expect(toSandbox(app, row).preview_host_base).toBe(base);
  expect(toSandbox(app, await getSandbox(app, actor, id)).preview_host_base).toBe(base);
});

test.each<[SandboxTier, string, string]>([
  ["free", "restricted", "ports_not_available"],
  ["payg", "off", "network_off"],
])("exposes no port on tier %s with network %s, and names the reason", async (tier, network, code) => {
  const { actor } = await person(tier);
  const { id, name } = await sandbox(actor, { network });
  await expect(exposePort(app, actor, id, 80)).rejects.toMatchObject({ status: 409, code });
  expect(toSandbox(app, await getSandbox(app, actor, id)).preview_host_base).toBeNull();
  expect(await new VisitedSandboxes(app).find(name)).toBeUndefined();
});

test("returns no host for a terminated sandbox, and hides another owner's sandbox", async () => {
  const { actor } = await person();
  const { id } = await sandbox(actor);
  const stranger = await person();
  await expect(exposePort(app, stranger.actor, id, 80)).rejects.toMatchObject({ status: 404 });
  await terminateSandbox(app, actor, id);
  await expect(exposePort(app, actor, id, 80)).rejects.toMatchObject({ code: "sandbox_terminated" });
  expect(toSandbox(app, await getSandbox(app, actor, id)).preview_host_base).toBeNull();
});

test("looks up a running sandbox from memory, and forgets the entry when the sandbox is terminated or paused", async () => {
  const { actor } = await person();
  const visited = new VisitedSandboxes(app);
  const { id, name, row } = await sandbox(actor);
  expect(await visited.find(name)).toEqual({ token: null, state: "running", machine: row.machine_id });
  const selects = spyOnQueries();
  await visited.find(name);
  expect(selects).not.toHaveBeenCalled();
  selects.mockRestore();

  await pauseSandbox(app, actor, id);
  expect(await visited.find(name)).toMatchObject({ state: "paused", wakes: false });
  await visited.wake(name);
  const woken = await visited.find(name);
  expect(woken).toMatchObject({ state: "running" });
  expect(woken).not.toMatchObject({ machine: row.machine_id });
  await terminateSandbox(app, actor, id);
  expect(await visited.find(name)).toMatchObject({
    state: "terminated",
    detail: "The sandbox is terminated: it was deleted.",
  });
});

test("discards a look-up that began before the sandbox ended", async () => {
  const { actor } = await person();
  const visited = new VisitedSandboxes(app);
  const { id, name } = await sandbox(actor);
  const early = visited.find(name);
  await terminateSandbox(app, actor, id);
  await early;
  expect(await visited.find(name)).toMatchObject({ state: "terminated" });
});

test("makes a visitor wait during a pause, and then reports the paused sandbox", async () => {
  const { actor } = await person();
  const visited = new VisitedSandboxes(app);
  const { id, name } = await sandbox(actor, { auto_resume: true });
  host.driver.slow("checkpoint", 100);
  const pause = pauseSandbox(app, actor, id);
  await vi.waitFor(async () => expect((await getSandbox(app, actor, id)).transition).toBe("pausing"));
  expect(await visited.find(name, { afresh: true })).toMatchObject({ state: "paused", wakes: true });
  await pause;
});

test("accepts the preview token that the owner reads", async () => {
  const { actor } = await person();
  const { name, row } = await sandbox(actor, { preview_auth: true });
  const { preview_auth_token } = toSandbox(app, row);
  expect(preview_auth_token).toMatch(/^[A-Za-z0-9]{32}$/);
  expect(await new VisitedSandboxes(app).find(name)).toMatchObject({ token: preview_auth_token });
});

test("hides the sandboxes of a suspended workspace", async () => {
  const { actor, workspace } = await person();
  const { name } = await sandbox(actor);
  await db
    .updateTable("workspaces")
    .set({ suspended_at: new Date() })
    .where("id", "=", workspace.id)
    .execute();
  expect(await new VisitedSandboxes(app).find(name)).toBeUndefined();
});

test("connects to the machine's own loopback", async () => {
  const { actor } = await person();
  const { row } = await sandbox(actor);
  const server = createServer((socket) => void socket.end("inside"));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  const stream = await new VisitedSandboxes(app).connect(row.machine_id ?? "", port);
  let said = "";
  for await (const piece of stream) said += String(piece);
  expect(said).toBe("inside");
});
