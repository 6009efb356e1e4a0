import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { sandboxNotFound, sandboxTerminated } from "../sandboxes/errors.ts";
import { SandboxParams } from "../sandboxes/schema.ts";
import { networkOff, portsNeedCard } from "./errors.ts";
import { exposePort } from "./ports.ts";
import { PortHost, PortQuery } from "./schema.ts";

export const portRoutes = (app: App): Route[] => [
  defineRoute({
    api: "sandbox",
    tag: "Ports",
    method: "GET",
    path: "/v1/sandboxes/{id}/host",
    operationId: "getSandboxHost",
    summary: "Public URL for a port",
    description:
      "Needs a card on file, and `network` restricted or open. The URL has no auth unless `preview_auth` is on; WebSockets pass through. It serves while the sandbox runs; a request to one that is paused with `auto_resume` wakes it. Answers of ours, and not of the server in the sandbox, carry `x-kontor-error`: not_listening, paused, terminated, unauthorized, not_found, busy, bad_response, timeout or unavailable.",
    scope: "sandboxes:read",
    params: SandboxParams,
    query: PortQuery,
    responses: { 200: PortHost },
    errors: [sandboxNotFound, sandboxTerminated, networkOff, portsNeedCard],
    handler: ({ actor, params, query }) => exposePort(app, actor, params.id, query.port),
  }),
];
