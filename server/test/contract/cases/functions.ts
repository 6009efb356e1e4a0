import { forgetActors } from "#accounts/find-actor.ts";
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
  getFunctionVariables: {
    success: async (world) => ({ params: await func(world, { env_vars: { A: "1" } }) }),
    unknown,
  },
  rotateFunctionKey: {
    success: async (world) => ({ params: await func(world, { auth_mode: "api_key" }) }),
    unknown,
  },
};
