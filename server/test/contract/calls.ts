/** Sends the call of a case with any caller's token, and finds secrets in responses. */
import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { expect } from "vitest";
import type { Route } from "#http/define-route.ts";
import type { Call } from "./cases/case.ts";
import type { Reply, World } from "./world.ts";

export function send(
  world: World,
  { method, path }: Pick<Route, "method" | "path">,
  { params, query, body, headers }: Call,
  token: string | null,
): Promise<Reply> {
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) =>
    encodeURIComponent(params?.[name] ?? "x"),
  );
  return world.call(method, query === undefined ? filled : `${filled}?${query}`, {
    token,
    body,
    ...(headers ? { headers } : {}),
  });
}

/** Returns the status of a refused WebSocket handshake. */
export async function refusedHandshake(url: string, token: string): Promise<number | undefined> {
  const handshake = request(url, {
    headers: {
      authorization: `Bearer ${token}`,
      connection: "Upgrade",
      upgrade: "websocket",
      "sec-websocket-version": "13",
      "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    },
  });
  handshake.end();
  const [response] = (await once(handshake, "response")) as [IncomingMessage];
  response.resume();
  return response.statusCode;
}

export const canary = "canary-that-no-answer-may-hold";
/** Patterns of secrets that the server creates. */
const made = [
  /whsec_[A-Za-z0-9+/=]{8}/,
  /fnk_[A-Za-z0-9]{12}/,
  /svc_[A-Za-z0-9]{12}/,
  /postgres(ql)?:\/\//,
  /rediss?:\/\//,
];

/** Writes the canary into a variable or a header of every object in the call. Returns the number of objects. */
export async function plantCanary(world: World, { params = {} }: Call): Promise<number> {
  const environment = `/api/v1/projects/${params["project_id"]}/environments/${params["env_id"]}`;
  const places: [string, string, object][] = [
    ["project_id", `/api/v1/projects/${params["project_id"]}`, { env_vars: { CANARY: canary } }],
    ["env_id", environment, { env_vars: { CANARY: canary } }],
    ["function_id", `/api/v1/functions/${params["function_id"]}`, { env_vars: { CANARY: canary } }],
    [
      "toolset_id",
      `/v1/agent-toolsets/${params["toolset_id"]}`,
      {
        http_tools: [
          {
            name: "planted",
            description: "",
            method: "GET",
            path: "/",
            parameters: { type: "object", properties: {} },
            headers: { "x-key": canary },
          },
        ],
      },
    ],
  ];
  let planted = 0;
  for (const [name, path, body] of places) {
    if (params[name] === undefined) continue;
    const { status } = await world.call("PATCH", path, { token: world.owner.token, body });
    if (status === 200) planted += 1;
  }
  return planted;
}

export function expectNoSecret({ text }: Reply): void {
  expect(text).not.toContain(canary);
  for (const form of made) expect(text).not.toMatch(form);
}
