import { expect, test } from "vitest";
import { testDatabase } from "../../../test/harness.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { allowlistOf } from "./allowlist.ts";
import { createSandbox } from "./create.ts";
import { sandboxEnv } from "./environment.ts";
import { terminateSandbox } from "./terminate.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const paid = await personWithTier(db, "enterprise");

const create = (input: Record<string, unknown>) => createSandbox(host.app, paid.actor, createInput(input));
const listOf = async (machine: string | null) => allowlistOf(db, machine ?? "", ["default.test"]);

test("a restricted machine has its sandbox's own list where there is one, an empty one too, else the default", async () => {
  const own = await create({ network: "restricted", allow_domains: ["own.test"] });
  const none = await create({ network: "restricted", allow_domains: [] });
  const plain = await create({ network: "restricted" });
  expect(await listOf(own.machine_id)).toEqual(["own.test"]);
  expect(await listOf(none.machine_id)).toEqual([]);
  expect(await listOf(plain.machine_id)).toEqual(["default.test"]);
});

test("a machine that is not restricted, has ended or is nobody's has no list at all", async () => {
  const open = await create({ network: "open", allow_domains: ["own.test"] });
  expect(await listOf(open.machine_id)).toBeUndefined();
  const ended = await create({ network: "restricted" });
  await terminateSandbox(host.app, paid.actor, ended.id);
  expect(await listOf(ended.machine_id)).toBeUndefined();
  expect(await listOf("m0000000000000000000")).toBeUndefined();
});

test("only a restricted sandbox is told of the proxy, and the caller's own environment wins", () => {
  expect(sandboxEnv("sbx_1", "open", { A: "b" })).toEqual({ KONTOR_SANDBOX_ID: "sbx_1", A: "b" });
  const env = sandboxEnv("sbx_1", "restricted", { HTTPS_PROXY: "", NO_PROXY: "*" });
  expect(env).toMatchObject({ HTTPS_PROXY: "", NO_PROXY: "*", HTTP_PROXY: "http://10.0.0.1:3128" });
});
