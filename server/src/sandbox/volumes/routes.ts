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
      "It takes no room before its first use, and what is in it after. A create of a sandbox that names a volume which is not there makes one of 10 GiB.",
    scope: "sandboxes:write",
    body: VolumeCreate,
    responses: { 201: Volume },
    errors: [volumeElsewhere, volumeExists, planLimit, accountSuspended],
    idempotent: true,
    replay: {
      deed: "sandbox_volume.created",
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
    summary: "Move a detached volume to another region",
    description:
      "The volume is `moving` until the event `volume.moved`, and no sandbox can have it meanwhile. Its bytes are copied, compared, and only then removed where they were; where that fails the volume stays, and the event's outcome is `failed`.",
    scope: "sandboxes:write",
    params: VolumeParams,
    body: VolumeMove,
    responses: { 202: Volume },
    errors: [volumeElsewhere, volumeNotFound, volumeInUse, volumeMoving],
    idempotent: true,
    replay: {
      deed: "sandbox_volume.move_begun",
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
      "The files are gone from the host's disk when this is answered, and nothing brings them back. A volume that a sandbox has, running or paused, is refused.",
    scope: "sandboxes:write",
    params: VolumeParams,
    responses: { 204: null },
    errors: [volumeNotFound, volumeInUse, volumeMoving],
    handler: ({ actor, params }) => remove(app, actor, params.id),
  }),
];
