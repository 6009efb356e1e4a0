import { expect, test } from "vitest";
import { testDatabase } from "../../../test/harness.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { allowlistOf } from "./allowlist.ts";
import { createSandbox } from "./lifecycle/create.ts";
import { sandboxEnv } from "./lifecycle/environment.ts";
import { pauseSandbox } from "./lifecycle/pause.ts";
import { resumeSandbox } from "./lifecycle/resume.ts";
import { terminateSandbox } from "./lifecycle/terminate.ts";
import { SandboxUpdate } from "./schema.ts";
import { updateSandbox } from "./update.ts";

const { db } = await testDatabase();
const reloaded: string[] = [];
const host = await testHost(db, { egress: { reload: async (machine) => void reloaded.push(machine) } });
const paid = await personWithTier(db, "enterprise");

const create = (input: Record<string, unknown>) => createSandbox(host.app, paid.actor, createInput(input));
const listOf = async (machine: string | null) => allowlistOf(db, machine ?? "", ["default.test"]);

test("gives a restricted machine its sandbox's own list if there is one, even an empty one, else the default", async () => {
  const own = await create({ network: "restricted", allow_domains: ["own.test"] });
  const none = await create({ network: "restricted", allow_domains: [] });
  const plain = await create({ network: "restricted" });
  expect(await listOf(own.machine_id)).toEqual(["own.test"]);
  expect(await listOf(none.machine_id)).toEqual([]);
  expect(await listOf(plain.machine_id)).toEqual(["default.test"]);
});

test("gives no list to a machine that is not restricted, has ended or has no owner", async () => {
  const open = await create({ network: "open", allow_domains: ["own.test"] });
  expect(await listOf(open.machine_id)).toBeUndefined();
  const ended = await create({ network: "restricted" });
  await terminateSandbox(host.app, paid.actor, ended.id);
  expect(await listOf(ended.machine_id)).toBeUndefined();
  expect(await listOf("m0000000000000000000")).toBeUndefined();
});

test("sets the proxy variables only for a restricted sandbox, and the caller's environment overrides them", () => {
  expect(sandboxEnv("sbx_1", "open", { A: "b" })).toEqual({ KONTOR_SANDBOX_ID: "sbx_1", A: "b" });
  const env = sandboxEnv("sbx_1", "restricted", { HTTPS_PROXY: "", NO_PROXY: "*" });
  expect(env).toMatchObject({ HTTPS_PROXY: "", NO_PROXY: "*", HTTP_PROXY: "http://10.0.0.1:3128" });
});

const update = (id: string, allow_domains: readonly string[] | null, { actor } = paid) =>
  updateSandbox(host.app, actor, id, SandboxUpdate.parse({ allow_domains }));

test("reloads a changed list for the running machine, and keeps it through a pause, a resume and a restart", async () => {
  const { id, machine_id: machine } = await create({ network: "restricted", allow_domains: ["own.test"] });
  expect(await update(id, ["new.test"])).toMatchObject({ id, allow_domains: ["new.test"] });
  expect(reloaded).toEqual([machine]);
  expect(await listOf(machine)).toEqual(["new.test"]);
  await pauseSandbox(host.app, paid.actor, id);
  await update(id, ["paused.test"]);
  expect(await listOf((await resumeSandbox(host.app, paid.actor, id)).machine_id)).toEqual(["paused.test"]);
  await host.restart();
  const { machine_id: now } = await updateSandbox(host.app, paid.actor, id, {});
  expect(await listOf(now)).toEqual(["paused.test"]);
  expect((await update(id, null)).allow_domains).toBeNull();
  expect(await listOf(now)).toEqual(["default.test"]);
  await terminateSandbox(host.app, paid.actor, id);
  await expect(update(id, [])).rejects.toMatchObject({ code: "sandbox_terminated" });
});

test("refuses a list on the free tier and from another workspace, and ignores it for an open network", async () => {
  const free = await personWithTier(db, "free");
  const { id } = await createSandbox(host.app, free.actor, createInput());
  await expect(update(id, ["a.test"], free)).rejects.toMatchObject({ code: "plan_limit" });
  await expect(update(id, ["a.test"])).rejects.toMatchObject({ code: "sandbox_not_found" });
  const open = await create({ network: "open" });
  expect((await update(open.id, ["a.test"])).allow_domains).toBeNull();
});
