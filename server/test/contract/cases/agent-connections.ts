/** Cases of toolsets to which people sign in. */
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import type { World } from "../world.ts";
import type { Cases } from "./case.ts";

let made = 0;
let provider: Promise<string> | undefined;

/** Starts a provider that publishes its metadata; no user signs in to it. */
async function startProvider(): Promise<string> {
  const server = createServer((request, response) => {
    const at = `http://${request.headers.host}`;
    const document = request.url?.startsWith("/.well-known/oauth-authorization-server")
      ? {
          issuer: `${at}/`,
          authorization_endpoint: `${at}/authorize`,
          token_endpoint: `${at}/token`,
          response_types_supported: ["code"],
          code_challenge_methods_supported: ["S256"],
        }
      : undefined;
    response.writeHead(document ? 200 : 404, { "content-type": "application/json" });
    response.end(JSON.stringify(document ?? {}));
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  server.unref();
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function toolset(world: World): Promise<{ toolset_id: string }> {
  provider ??= startProvider();
  const { status, json, text } = await world.call("POST", "/v1/agent-toolsets", {
    token: world.owner.token,
    body: {
      name: `sign-in-${(made += 1)}`,
      kind: "http",
      url: await provider,
      auth_type: "oauth",
      oauth_client_id: "kontor",
      http_tools: [
        { name: "find", description: "Finds.", method: "GET", path: "/find", parameters: { type: "object" } },
      ],
    },
  });
  if (status !== 201) throw new Error(`no toolset: ${text}`);
  return { toolset_id: (json as { id: string }).id };
}

async function connection(world: World): Promise<{ toolset_id: string; end_user_id: string }> {
  const { toolset_id } = await toolset(world);
  await world.app.db
    .insertInto("agent_connections")
    .values({
      id: `con_case${made}`,
      toolset_id,
      end_user_id: "ada",
      status: "connected",
      connected_at: new Date(),
      sealed: Buffer.alloc(0),
      provider: "{}",
    })
    .execute();
  return { toolset_id, end_user_id: "ada" };
}

const unknown = { toolset_id: "tst_doesnotexist" };

export const agentConnectionCases: Cases = {
  startAgentToolsetSignIn: {
    success: async (world) => ({ params: await toolset(world), body: {} }),
    unknown,
  },
  disconnectAgentToolset: { success: async (world) => ({ params: await toolset(world) }), unknown },
  listAgentConnections: {
    success: async (world) => ({ params: { toolset_id: (await connection(world)).toolset_id } }),
    unknown,
  },
  deleteAgentConnection: { success: async (world) => ({ params: await connection(world) }), unknown },
};
