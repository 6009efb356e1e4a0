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
import { snapshotNotFound } from "../snapshots/errors.ts";
import { createSandbox } from "./create.ts";
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
import { forkSandbox } from "./fork.ts";
import { keepAlive } from "./keep-alive.ts";
import { limits } from "./limits.ts";
import { list } from "./list.ts";
import { metrics } from "./metrics.ts";
import { pauseSandbox } from "./pause.ts";
import { resumeSandbox } from "./resume.ts";
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
import { terminateSandbox } from "./terminate.ts";

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
      deed: "sandbox.created",
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
      cursor: z.string().max(2048).optional(),
      limit: z.int().min(1).max(100).default(50),
    }),
    responses: { 200: SandboxList },
    handler: ({ actor, query }) => list(app, actor, query),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/limits",
    operationId: "getSandboxLimits",
    summary: "Sizes and caps the plan allows",
    scope: "sandboxes:read",
    responses: { 200: Limits },
    handler: ({ actor }) => limits(app, actor),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}",
    operationId: "getSandbox",
    summary: "Get one sandbox",
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
      "Replaces the allowlist. It applies before the response: open connections to hosts that left the list are closed. It stays through pause, resume and a restart of the server. Requires tier payg or enterprise, as in the create.",
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
    description: "Works in every state; on a terminated sandbox it changes nothing and answers the same.",
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
    summary: "Restart the lifetime clock",
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
    summary: "Snapshot and suspend",
    description:
      "Writes memory, processes and files down and frees the machine. Connections end, and so do commands that were waited for as a stream; background commands go on after the resume. What cannot be written down is named in `not_checkpointable`, and the sandbox runs on.",
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
    summary: "Restore from the snapshot",
    description:
      "Consumes the snapshot and restarts the lifetime clock with the last `timeout_seconds`. On a sandbox that runs it changes nothing and answers the same.",
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
    summary: "Clone a sandbox as it stands",
    description:
      "Makes `count` sandboxes with the memory, processes and files of this one, or none of them. Each has an id, host name, machine id, address, preview token and lifetime of its own, new random numbers from the kernel, and `forked_from`. The source goes on: it stands still only while its memory is written, connections within it stay, those that leave it are reset, and calls to it that take longer than a moment are answered `interrupted_by_snapshot`. A paused source is forked from its snapshot and stays paused. What processes that run already hold in memory is the same in every clone, their environment and the state of their own random number generators included: reseed them.",
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
      deed: "sandbox.created",
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
    summary: "Live CPU and memory",
    scope: "sandboxes:read",
    params: SandboxParams,
    query: z.strictObject({ since: z.int().min(0).optional().describe("Unix seconds; only newer samples.") }),
    responses: { 200: Metrics },
    errors: readErrors,
    rateLimit: "none",
    handler: ({ actor, params, query }) => metrics(app, actor, params.id, query.since),
  }),
];
