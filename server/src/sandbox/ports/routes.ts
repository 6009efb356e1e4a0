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
    summary: "Get the public URL of a port",
    description:
      "Requires tier payg or enterprise, and `network` restricted or open; otherwise responds with 409. The URL needs no token unless `preview_auth` is on, and supports WebSockets. It works while the sandbox runs; a request to a paused sandbox with `auto_resume` resumes it. Error responses of the platform, not of your server, have the header `x-kontor-error`. Values: not_listening, paused, terminated, unauthorized, not_found, busy, bad_response, timeout or unavailable.",
    scope: "sandboxes:read",
    params: SandboxParams,
    query: PortQuery,
    responses: { 200: PortHost },
    errors: [sandboxNotFound, sandboxTerminated, networkOff, portsNeedCard],
    handler: ({ actor, params, query }) => exposePort(app, actor, params.id, query.port),
  }),
];
