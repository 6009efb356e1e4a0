import { forgetActors } from "#accounts/find-actor.ts";
import { goLive, makeVersion } from "#platform/instances/testing/instances-host.ts";
import { makeTeam } from "../../factories.ts";
import type { World } from "../world.ts";
import type { Cases } from "./case.ts";

const unknown = { function_id: "99999999-9999-4999-8999-999999999999" };

let made = 0;

const body = (more: object = {}) => ({
  name: `function-${++made}`,
  runtime: "nodejs",
  handler_code: 'export default () => "hello"',
  ...more,
});

/** A function of the owner's, in a team of its own: plans count them. */
async function func(world: World, more: object = {}): Promise<{ function_id: string }> {
  const { id: workspace } = await makeTeam(world.app.db, { [world.owner.userId]: "member" });
  forgetActors(world.app);
  const { json } = await world.call("POST", "/api/v1/functions", {
    token: world.owner.token,
    body: body({ workspace, ...more }),
  });
  return { function_id: (json as { id: string }).id };
}

/** One that answers. */
async function served(world: World): Promise<{ function_id: string }> {
  const { function_id: id } = await func(world);
  const { db, machines } = world.app;
  const { id: image } = await machines.host.ensureImage("debian-12");
  const owner = { id, name: "", workspaceId: "" };
  const version = await makeVersion(db, { image }, owner, 1, 'export default () => "hello"');
  await world.functions.prove(version, new AbortController().signal);
  await goLive(db, version);
  await world.functions.switched(id);
  return { function_id: id };
}

export const functionCases: Cases = {
  listFunctions: { success: async (world) => (await func(world), { query: "limit=5&workspace=personal" }) },
  createFunction: {
    success: async (world) => {
      const { id: workspace } = await makeTeam(world.app.db, { [world.owner.userId]: "member" });
      forgetActors(world.app);
      return {
        body: body({
          workspace,
          dependencies: { "date-fns": "^4.1.0" },
          auth_mode: "api_key",
          idle_timeout_seconds: 10,
          env_vars: { GREETING: "hello" },
          memory_mb: 512,
          timeout_seconds: 5,
          node: "us-1",
        }),
      };
    },
  },
  checkFunctionName: { success: () => ({ params: { name: "surely-free" } }), isOwnerless: true },
  getFunction: { success: async (world) => ({ params: await func(world) }), unknown },
  updateFunction: {
    success: async (world) => ({
      params: await func(world),
      body: {
        handler_code: 'export default () => "bye"',
        dependencies: { nanoid: "5.1.6" },
        auth_mode: "api_key",
        idle_timeout_seconds: 60,
        env_vars: { GREETING: null },
        memory_mb: 128,
        timeout_seconds: 10,
      },
    }),
    unknown,
  },
  deleteFunction: { success: async (world) => ({ params: await func(world) }), unknown },
  // Nothing is carried out here: it is queued, and that is answered.
  deployFunction: {
    success: async (world) => ({ params: await func(world), query: "wait=false" }),
    unknown,
  },
  invokeFunction: {
    success: async (world) => ({
      params: await served(world),
      body: { method: "POST", path: "/a", query: { b: 1 }, headers: { "x-c": "d" }, body: { e: true } },
    }),
    unknown,
  },
  getFunctionLogs: {
    success: async (world) => ({ params: await func(world), query: "lines=5" }),
    unknown,
  },
  getFunctionMetrics: {
    success: async (world) => ({ params: await func(world), query: "period=15m" }),
    unknown,
  },
  getFunctionVariables: {
    success: async (world) => ({ params: await func(world, { env_vars: { A: "1" } }) }),
    unknown,
  },
  rotateFunctionKey: {
    success: async (world) => ({ params: await func(world, { auth_mode: "api_key" }) }),
    unknown,
  },
};
