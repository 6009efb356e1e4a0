import { clearActorCache } from "#accounts/find-actor.ts";
import { goLive, makeVersion } from "#platform/instances/testing/instances-host.ts";
import { makeTeam } from "../../factories.ts";
import type { World } from "../world.ts";
import type { Cases } from "./case.ts";

const unknown = { function_id: "99999999-9999-4999-8999-999999999999" };

const noVersion = { ...unknown, version_id: "fnv_nothere" };

let made = 0;

const body = (more: object = {}) => ({
  name: `function-${++made}`,
  runtime: "nodejs",
  handler_code: 'export default () => "hello"',
  ...more,
});

/** Creates a function of the owner, in its own team, because plans limit functions. */
async function func(world: World, more: object = {}): Promise<{ function_id: string }> {
  const { id: workspace } = await makeTeam(world.app.db, { [world.owner.userId]: "member" });
  clearActorCache(world.app);
  const { json } = await world.call("POST", "/api/v1/functions", {
    token: world.owner.token,
    body: body({ workspace, ...more }),
  });
  return { function_id: (json as { id: string }).id };
}

/** Makes a version in the queue; no job worker runs in these tests. */
async function version(world: World): Promise<{ function_id: string; version_id: string }> {
  const { function_id } = await func(world);
  const { token } = world.owner;
  await world.call("POST", `/api/v1/functions/${function_id}/deploy?wait=false`, { token });
  const { json } = await world.call("GET", `/api/v1/functions/${function_id}/versions`, { token });
  return { function_id, version_id: (json as { id: string }[])[0]!.id };
}

async function liveVersion(world: World): Promise<{ function_id: string; version_id: string }> {
  const made = await version(world);
  await world.app.db
    .updateTable("function_versions")
    .set({ state: "live", image_id: "app_contract", finished_at: new Date() })
    .where("id", "=", made.version_id)
    .execute();
  return made;
}

/** Makes a function with a live version. */
async function makeLiveFunction(world: World): Promise<{ function_id: string }> {
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
      clearActorCache(world.app);
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
  // The deployment is only queued, and the response confirms that.
  deployFunction: {
    success: async (world) => ({ params: await func(world), query: "wait=false" }),
    unknown,
  },
  invokeFunction: {
    success: async (world) => ({
      params: await makeLiveFunction(world),
      body: { method: "POST", path: "/a", query: { b: 1 }, headers: { "x-c": "d" }, body: { e: true } },
    }),
    unknown,
  },
  listFunctionVersions: {
    success: async (world) => ({ params: { function_id: (await version(world)).function_id } }),
    unknown,
  },
  getFunctionVersion: { success: async (world) => ({ params: await version(world) }), unknown: noVersion },
  getFunctionVersionLogs: {
    success: async (world) => ({ params: await version(world) }),
    unknown: noVersion,
  },
  rollBackFunction: {
    success: async (world) => ({ params: await liveVersion(world), query: "wait=false" }),
    unknown: noVersion,
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
