import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import {
  machineErrors,
  noCapacity,
  notCheckpointable,
  snapshotDamaged,
  snapshotIncompatible,
} from "#machines/errors.ts";
import { moveTimedOut, sandboxNotFound, sandboxTerminated, volumeAttached } from "../sandboxes/errors.ts";
import { SandboxParams } from "../sandboxes/schema.ts";
import { namedSnapshotCapReached, snapshotNameTaken, snapshotNotFound } from "./errors.ts";
import {
  Snapshot,
  SnapshotCreate,
  SnapshotList,
  SnapshotParams,
  SnapshotQuery,
  toSnapshot,
} from "./schema.ts";
import { deleteSnapshot, getSnapshot, list } from "./snapshots.ts";
import { takeSnapshot } from "./take.ts";

const common = { api: "sandbox", tag: "Snapshots", extension: true } as const;

export const snapshotRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/snapshots",
    operationId: "createSnapshot",
    summary: "Create a snapshot of a sandbox",
    description:
      "Stores memory, processes and files. `POST /v1/sandboxes` with `snapshot` creates sandboxes from them. The source continues as it does during a fork. A workspace keeps at most `snapshot_cap` of these snapshots; snapshots of paused sandboxes count separately. Each expires when it is unused for the tier's `paused_retention_days`.",
    scope: "sandboxes:write",
    params: SandboxParams,
    body: SnapshotCreate,
    responses: { 201: Snapshot },
    errors: [
      sandboxNotFound,
      sandboxTerminated,
      moveTimedOut,
      volumeAttached,
      namedSnapshotCapReached,
      snapshotNameTaken,
      notCheckpointable,
      snapshotDamaged,
      snapshotIncompatible,
      noCapacity,
      ...machineErrors,
    ],
    idempotent: true,
    replay: {
      activity: "snapshot.created",
      render: async ({ actor, made: [{ id }] }) => toSnapshot(await getSnapshot(app, actor, String(id))),
    },
    handler: async ({ actor, params, body }) => toSnapshot(await takeSnapshot(app, actor, params.id, body)),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/snapshots",
    operationId: "listSnapshots",
    summary: "List snapshots, newest first by default",
    scope: "sandboxes:read",
    query: SnapshotQuery,
    responses: { 200: SnapshotList },
    handler: ({ actor, query }) => list(app, actor, query),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/snapshots/{id}",
    operationId: "getSnapshot",
    summary: "Get a snapshot",
    scope: "sandboxes:read",
    params: SnapshotParams,
    responses: { 200: Snapshot },
    errors: [snapshotNotFound],
    handler: async ({ actor, params }) => toSnapshot(await getSnapshot(app, actor, params.id)),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/sandboxes/snapshots/{id}",
    operationId: "deleteSnapshot",
    summary: "Delete a snapshot",
    description: "Sandboxes created from the snapshot keep running.",
    scope: "sandboxes:write",
    params: SnapshotParams,
    responses: { 204: null },
    errors: [snapshotNotFound],
    handler: ({ actor, params }) => deleteSnapshot(app, actor, params.id),
  }),
];
