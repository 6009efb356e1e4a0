import { z } from "zod";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import {
  machineErrors,
  noCapacity,
  notCheckpointable,
  restoreFailed,
  snapshotDamaged,
  snapshotIncompatible,
  startFailed,
  templateFailed,
  templatePreparing,
  volumeMissing,
} from "#machines/errors.ts";
import { volumeElsewhere, volumeInUse, volumeMoving, volumeNotFound } from "../volumes/errors.ts";
import { pageQuery } from "../fields.ts";
import { snapshotNotFound } from "../snapshots/errors.ts";
import { createSandbox } from "./lifecycle/create.ts";
import {
  readErrors,
  runningErrors,
  sandboxNotFound,
  sandboxTerminated,
  snapshotCapReached,
  timeoutTooLong,
  volumeAttached,
  wakeErrors,
} from "./errors.ts";
import { forkSandbox } from "./lifecycle/fork.ts";
import { keepAlive } from "./lifecycle/keep-alive.ts";
import { limits } from "./limits/limits.ts";
import { list } from "./list.ts";
import { metrics } from "./metrics.ts";
import { pauseSandbox } from "./lifecycle/pause.ts";
import { resumeSandbox } from "./lifecycle/resume.ts";
import { findStarted, getSandbox } from "./sandboxes.ts";
import {
  KeepAlive,
  Limits,
  Metrics,
  PauseRecord,
  Sandbox,
  SandboxCreate,
  SandboxFork,
  SandboxForks,
  SandboxList,
  SandboxParams,
  SandboxUpdate,
  createdQuery,
  readOnlyFields,
  toPauseRecord,
  toSandbox,
} from "./schema.ts";
import { statuses } from "./states.ts";
import { updateSandbox } from "./update.ts";
import { terminateSandbox } from "./lifecycle/terminate.ts";

const common = { api: "sandbox", tag: "Sandboxes" } as const;

export const sandboxesRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes",
    operationId: "createSandbox",
    summary: "Create a sandbox",
    scope: "sandboxes:write",
    body: SandboxCreate,
    responses: { 201: Sandbox },
    errors: [
      snapshotNotFound,
      snapshotDamaged,
      snapshotIncompatible,
      restoreFailed,
      planLimit,
      accountSuspended,
      timeoutTooLong,
      noCapacity,
      startFailed,
      templatePreparing,
      templateFailed,
      volumeElsewhere,
      volumeNotFound,
      volumeInUse,
      volumeMoving,
      volumeMissing,
    ],
    idempotent: true,
    replay: {
      activity: "sandbox.created",
      render: async ({ actor, made: [{ id }] }) => {
        const row = await findStarted(app, actor, String(id));
        return row && toSandbox(app, row);
      },
    },
    secretFields: ["preview_auth_token"],
    rateLimit: "sandbox_create",
    handler: async ({ actor, body }) => toSandbox(app, await createSandbox(app, actor, body)),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes",
    operationId: "listSandboxes",
    summary: "List sandboxes, newest first by default",
    scope: "sandboxes:read",
    query: z.strictObject({
      status: z
        .array(z.enum(statuses))
        .min(1)
        .optional()
        .describe("Status to include. Repeat the parameter for several."),
      template: z
        .string()
        .min(1)
        .max(128)
        .optional()
        .describe("Template name as given at the create, or the id of a custom template. Extension."),
      ...createdQuery,
      metadata: z
        .record(z.string(), z.string())
        .optional()
        .describe("Metadata to match, as metadata[key]=value. Repeat it; all must match."),
      ...pageQuery,
    }),
    responses: { 200: SandboxList },
    handler: ({ actor, query }) => list(app, actor, query),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/limits",
    operationId: "getSandboxLimits",
    summary: "Get the workspace's sandbox limits",
    scope: "sandboxes:read",
    responses: { 200: Limits },
    handler: ({ actor }) => limits(app, actor),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}",
    operationId: "getSandbox",
    summary: "Get a sandbox",
    scope: "sandboxes:read",
    params: SandboxParams,
    responses: { 200: Sandbox },
    errors: readErrors,
    handler: async ({ actor, params }) => toSandbox(app, await getSandbox(app, actor, params.id)),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path: "/v1/sandboxes/{id}",
    operationId: "updateSandbox",
    summary: "Change the hosts a sandbox may reach",
    description:
      "Replaces the allowlist before it responds, and closes open connections to removed hosts. The list stays through pause, resume and a restart of the server. A list of hosts requires tier payg or enterprise, as in the create.",
    scope: "sandboxes:write",
    extension: true,
    params: SandboxParams,
    body: SandboxUpdate,
    readOnlyFields,
    responses: { 200: Sandbox },
    errors: [...readErrors, sandboxTerminated, planLimit],
    handler: async ({ actor, params, body }) =>
      toSandbox(app, await updateSandbox(app, actor, params.id, body)),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/sandboxes/{id}",
    operationId: "terminateSandbox",
    summary: "Terminate a sandbox",
    description: "Works in every state. A terminated sandbox is returned unchanged.",
    scope: "sandboxes:write",
    params: SandboxParams,
    responses: { 200: Sandbox },
    errors: readErrors,
    handler: async ({ actor, params }) => toSandbox(app, await terminateSandbox(app, actor, params.id)),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/timeout",
    operationId: "keepSandboxAlive",
    summary: "Restart a sandbox's lifetime",
    scope: "sandboxes:write",
    params: SandboxParams,
    body: KeepAlive,
    responses: { 200: Sandbox },
    errors: [...runningErrors, timeoutTooLong],
    handler: async ({ actor, params, body }) =>
      toSandbox(app, await keepAlive(app, actor, params.id, body.timeout_seconds)),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/pause",
    operationId: "pauseSandbox",
    summary: "Pause a sandbox",
    description:
      "Writes memory, processes and files to a snapshot and frees the machine. Connections and streamed commands end; background commands continue after the resume. State that cannot be saved fails the request with 409 `not_checkpointable`, which names it, and the sandbox keeps running.",
    scope: "sandboxes:write",
    params: SandboxParams,
    responses: { 200: PauseRecord },
    errors: [...runningErrors, snapshotCapReached, notCheckpointable, ...machineErrors],
    handler: async ({ actor, params }) => toPauseRecord(await pauseSandbox(app, actor, params.id)),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/resume",
    operationId: "resumeSandbox",
    summary: "Resume a paused sandbox",
    description:
      "Consumes the snapshot and restarts the lifetime with the last `timeout_seconds`. A running sandbox is returned unchanged.",
    scope: "sandboxes:write",
    params: SandboxParams,
    responses: { 200: Sandbox },
    errors: [sandboxNotFound, sandboxTerminated, ...wakeErrors],
    handler: async ({ actor, params }) => toSandbox(app, await resumeSandbox(app, actor, params.id)),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/fork",
    operationId: "forkSandbox",
    summary: "Fork a sandbox",
    description:
      "Creates `count` clones with the memory, processes and files of this sandbox, or none of them. Each clone has its own id, host name, machine id, address, preview token and lifetime. The kernel of each clone returns new random numbers. A running source stops only while its memory is written. Connections inside it stay open; connections to the outside are reset. Requests in progress that do not end within 250 ms fail with 409 `interrupted_by_snapshot`. A paused source is forked from its snapshot and stays paused. Running processes keep the same memory in every clone, including their environment and random number generators: reseed those.",
    scope: "sandboxes:write",
    params: SandboxParams,
    body: SandboxFork,
    responses: { 201: SandboxForks },
    errors: [
      sandboxNotFound,
      sandboxTerminated,
      planLimit,
      accountSuspended,
      timeoutTooLong,
      volumeAttached,
      notCheckpointable,
      snapshotDamaged,
      snapshotIncompatible,
      ...wakeErrors,
      ...machineErrors,
    ],
    extension: true,
    idempotent: true,
    replay: {
      activity: "sandbox.created",
      render: async ({ actor, made }) => ({
        items: await Promise.all(
          made.map(async ({ id }) => toSandbox(app, await getSandbox(app, actor, String(id)))),
        ),
      }),
    },
    secretFields: ["preview_auth_token"],
    rateLimit: "sandbox_create",
    handler: async ({ actor, params, body }) => ({
      items: (await forkSandbox(app, actor, params.id, body)).map((row) => toSandbox(app, row)),
    }),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/metrics",
    operationId: "getSandboxMetrics",
    summary: "Get CPU, memory and disk metrics",
    scope: "sandboxes:read",
    params: SandboxParams,
    query: z.strictObject({
      since: z
        .int()
        .min(0)
        .optional()
        .describe(
          "Unix time in seconds; only newer samples are returned. Default: all samples of the last minute.",
        ),
    }),
    responses: { 200: Metrics },
    errors: readErrors,
    rateLimit: "none",
    handler: ({ actor, params, query }) => metrics(app, actor, params.id, query.since),
  }),
];
