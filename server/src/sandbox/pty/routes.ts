import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { execFailed, machineErrors, tooManyProcesses } from "#machines/errors.ts";
import { onSandbox } from "../audit-target.ts";
import { runningErrors } from "../sandboxes/errors.ts";
import { SandboxParams } from "../sandboxes/schema.ts";
import { attachPty } from "./attach.ts";
import { ptyNotFound } from "./errors.ts";
import { findBegun, getPty, killPty, listPtys, startPty } from "./pty.ts";
import { Pty, PtyAttach, PtyList, PtyMessage, PtyOpen, PtyParams, PtyRequest, PtyStart } from "./schema.ts";

const common = { api: "sandbox", tag: "Terminals", extension: true } as const;
const startErrors = [...runningErrors, ...machineErrors, execFailed, tooManyProcesses];

const socket = {
  description:
    "Binary messages are input and output bytes, text messages are JSON. The first message is `started`. The last is " +
    "`exited` (close code 1000) or `error` (4000 plus the HTTP status). The terminal outlives the connection; at most 16 " +
    "clients can attach. If a client does not read, the terminal's programs wait. A browser may send a token as the " +
    "subprotocol `kontor.bearer.<token>` beside `kontor`. A console session is accepted only from its own origin.",
  scope: "sandboxes:write",
  takes: PtyRequest,
  sends: PtyMessage,
} as const;

export const ptyRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/pty",
    operationId: "startPty",
    summary: "Start a terminal",
    description:
      "Runs `command`, or the user's login shell. The program keeps running when the client disconnects, when the server restarts, and through a pause.",
    scope: "sandboxes:write",
    params: SandboxParams,
    body: PtyStart,
    responses: { 201: Pty },
    errors: startErrors,
    idempotent: true,
    replay: {
      render: ({ actor, params, made }) => findBegun(app, actor, params.id, String(made.at(-1)?.["id"])),
    },
    audit: { ...onSandbox, action: "terminal.started" },
    handler: ({ actor, params, body, note }) =>
      startPty(app, actor, params.id, body, (pty) => note(app.db, { id: pty })),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/pty",
    operationId: "listPtys",
    summary: "List terminals, newest first",
    description: "A WebSocket handshake on this path starts a terminal and attaches to it.",
    scope: "sandboxes:read",
    params: SandboxParams,
    responses: { 200: PtyList },
    errors: [...runningErrors, ...machineErrors],
    handler: ({ actor, params }) => listPtys(app, actor, params.id),
    socket: {
      ...socket,
      summary: "Start a terminal and attach to it",
      query: PtyOpen,
      errors: startErrors,
      audit: { ...onSandbox, action: "terminal.started" },
      open: async ({ actor, params, query }) => {
        const { id } = await startPty(app, actor, params.id, query);
        return attachPty(app, actor, params.id, id, PtyAttach.parse({}));
      },
    },
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/pty/{pty}",
    operationId: "getPty",
    summary: "Get a terminal",
    description: "A WebSocket handshake on this path attaches to the terminal.",
    scope: "sandboxes:read",
    params: PtyParams,
    responses: { 200: Pty },
    errors: [...runningErrors, ...machineErrors, ptyNotFound],
    handler: ({ actor, params }) => getPty(app, actor, params.id, params.pty),
    socket: {
      ...socket,
      summary: "Attach to a terminal",
      query: PtyAttach,
      errors: [...runningErrors, ...machineErrors, ptyNotFound],
      audit: { ...onSandbox, action: "terminal.attached", detail: ({ params }) => ({ pty: params.pty }) },
      open: ({ actor, params, query }) => attachPty(app, actor, params.id, params.pty, query),
    },
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/sandboxes/{id}/pty/{pty}",
    operationId: "killPty",
    whileSuspended: false,
    summary: "Hang up a terminal",
    description:
      "Sends SIGHUP to all programs of the terminal, and SIGKILL after 5 s if the first program still runs. A terminal that has ended is returned unchanged.",
    scope: "sandboxes:write",
    params: PtyParams,
    responses: { 200: Pty },
    errors: [...runningErrors, ...machineErrors, ptyNotFound],
    handler: ({ actor, params }) => killPty(app, actor, params.id, params.pty),
  }),
];
