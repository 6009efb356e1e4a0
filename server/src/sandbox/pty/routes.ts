import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { execFailed, machineErrors, tooManyProcesses } from "#machines/errors.ts";
import { onSandbox } from "../audited.ts";
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
    "Binary messages are what is typed and what is shown, text messages are JSON. The first is `started`, the last " +
    "`exited` (close code 1000) or `error` (4000 + its HTTP status). The terminal outlives the connection; while a " +
    "viewer does not read, its programs wait. A browser may send a token as the subprotocol `kontor.bearer.<token>` " +
    "beside `kontor`; a console session is taken from its own origin alone.",
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
    summary: "Start a program on a terminal",
    description:
      "A login shell where no command is given. It runs on when the caller goes, when the server restarts and over a pause.",
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
    description: "As a WebSocket's handshake it starts a terminal and shows it.",
    scope: "sandboxes:read",
    params: SandboxParams,
    responses: { 200: PtyList },
    errors: [...runningErrors, ...machineErrors],
    handler: ({ actor, params }) => listPtys(app, actor, params.id),
    socket: {
      ...socket,
      summary: "Start a terminal and show it",
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
    summary: "Poll a terminal",
    description: "As a WebSocket's handshake it shows the terminal.",
    scope: "sandboxes:read",
    params: PtyParams,
    responses: { 200: Pty },
    errors: [...runningErrors, ...machineErrors, ptyNotFound],
    handler: ({ actor, params }) => getPty(app, actor, params.id, params.pty),
    socket: {
      ...socket,
      summary: "Show a terminal, from what was shown before on",
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
      "SIGHUP to all its programs now, SIGKILL after 5 s where the first of them lives on. On one that ended it changes nothing and answers the same.",
    scope: "sandboxes:write",
    params: PtyParams,
    responses: { 200: Pty },
    errors: [...runningErrors, ...machineErrors, ptyNotFound],
    handler: ({ actor, params }) => killPty(app, actor, params.id, params.pty),
  }),
];
