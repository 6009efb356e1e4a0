import { accountSuspended, planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { volumeElsewhere, volumeExists, volumeInUse, volumeMoving, volumeNotFound } from "./errors.ts";
import { move } from "./move.ts";
import { Volume, VolumeCreate, VolumeList, VolumeMove, VolumeParams, VolumeQuery } from "./schema.ts";
import { create, get, list, remove } from "./volumes.ts";

const common = { api: "sandbox", tag: "Volumes" } as const;

export const volumeRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/volumes",
    operationId: "createVolume",
    summary: "Create a volume",
    description:
      "A volume takes no disk space before its first use, and later only the space of its files. A sandbox create that names a missing volume creates one of 10 GiB.",
    scope: "sandboxes:write",
    body: VolumeCreate,
    responses: { 201: Volume },
    errors: [volumeElsewhere, volumeExists, planLimit, accountSuspended],
    idempotent: true,
    replay: {
      activity: "sandbox_volume.created",
      render: ({ actor, made: [{ id }] }) => get(app, actor, String(id)),
    },
    handler: ({ actor, body }) => create(app, actor, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/volumes",
    operationId: "listVolumes",
    summary: "List volumes, newest first",
    scope: "sandboxes:read",
    query: VolumeQuery,
    responses: { 200: VolumeList },
    handler: ({ actor, query }) => list(app, actor, query),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/volumes/{id}/move",
    operationId: "moveVolume",
    summary: "Move a volume to another region",
    description:
      "The volume must be detached. Until the event `volume.moved`, the volume has the status `moving` and no sandbox can attach it. The server copies and compares the bytes, then removes the old ones. If that fails, the volume stays in its region and the event's outcome is `failed`.",
    scope: "sandboxes:write",
    params: VolumeParams,
    body: VolumeMove,
    responses: { 202: Volume },
    errors: [volumeElsewhere, volumeNotFound, volumeInUse, volumeMoving],
    idempotent: true,
    replay: {
      activity: "sandbox_volume.move_begun",
      render: ({ actor, made: [{ id }] }) => get(app, actor, String(id)),
    },
    handler: ({ actor, params, body }) => move(app, actor, params.id, body.region),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/sandboxes/volumes/{id}",
    operationId: "deleteVolume",
    summary: "Delete a volume and its data",
    description:
      "Deletes the files from the host's disk before it responds; they cannot be restored. A volume attached to a running or paused sandbox is refused with 409 `volume_in_use`.",
    scope: "sandboxes:write",
    params: VolumeParams,
    responses: { 204: null },
    errors: [volumeNotFound, volumeInUse, volumeMoving],
    handler: ({ actor, params }) => remove(app, actor, params.id),
  }),
];
