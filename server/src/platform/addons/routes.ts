import { z } from "zod";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { environmentNotFound } from "../environments/errors.ts";
import { projectNotFound } from "../projects/errors.ts";
import { onAddon } from "../audited.ts";
import type { Addons } from "./addons.ts";
import { createAddon } from "./create.ts";
import { deleteAddon } from "./delete.ts";
import { addonExists, addonNotFound, addonNotRunning, noPublicPort } from "./errors.ts";
import { listAddons, requireAddon } from "./find.ts";
import { restartAddon } from "./restart.ts";
import {
  Addon,
  AddonCreate,
  AddonParams,
  AddonUpdate,
  AddonWithUrls,
  readOnlyFields,
  toAddon,
  toAddonWithUrls,
} from "./schema.ts";
import { updateAddon } from "./update.ts";

const common = { api: "platform", tag: "Add-ons" } as const;
const path = "/api/v1/projects/{project_id}/addons";
const ofProject = z.object({ project_id: z.guid() });
const notFound = [projectNotFound, addonNotFound] as const;

export const addonRoutes = (addons: Addons): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path,
    operationId: "listAddons",
    summary: "The add-ons of a project, newest first",
    scope: "platform:read",
    params: ofProject,
    responses: { 200: z.array(Addon) },
    errors: [projectNotFound],
    handler: async ({ actor, params }) =>
      (await listAddons(addons.app, actor, params.project_id)).map(toAddon),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path,
    operationId: "createAddon",
    summary: "Create a PostgreSQL or a Redis of the project's own",
    description:
      "Answered as `provisioning`; it takes connections once it is `running`. `DATABASE_URL` or `REDIS_URL` reaches the project's processes at their next deploy, restart or wake. Fields that are not named here are kept under `options`.",
    scope: "platform:write",
    params: ofProject,
    body: AddonCreate,
    responses: { 201: Addon },
    errors: [projectNotFound, environmentNotFound, addonExists, noPublicPort, planLimit, accountSuspended],
    idempotent: true,
    replay: {
      deed: "addon.created",
      render: async ({ actor, params, made: [{ id }] }) =>
        toAddon(await requireAddon(addons.app, actor, params.project_id, String(id))),
    },
    handler: async ({ actor, params, body }) =>
      toAddon(await createAddon(addons, actor, params.project_id, body)),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/{addon_id}`,
    operationId: "getAddon",
    summary: "An add-on with its connection URLs",
    scope: "platform:read",
    params: AddonParams,
    responses: { 200: AddonWithUrls },
    errors: [...notFound],
    audit: { ...onAddon, action: "connection_url.read" },
    handler: async ({ actor, params }) =>
      toAddonWithUrls(addons.app, await requireAddon(addons.app, actor, params.project_id, params.addon_id)),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path: `${path}/{addon_id}`,
    operationId: "updateAddon",
    summary: "Open an add-on to the outside, or close it",
    description: "Closing ends the connections that came that way.",
    scope: "platform:write",
    extension: true,
    params: AddonParams,
    body: AddonUpdate,
    readOnlyFields,
    responses: { 200: AddonWithUrls },
    errors: [...notFound, noPublicPort, accountSuspended],
    handler: async ({ actor, params, body }) =>
      toAddonWithUrls(addons.app, await updateAddon(addons, actor, params.project_id, params.addon_id, body)),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/{addon_id}/restart`,
    operationId: "restartAddon",
    summary: "End an add-on's process in order, and begin it again",
    description: "Answered once it takes connections again, or after a minute. What was committed is kept.",
    scope: "platform:write",
    extension: true,
    params: AddonParams,
    responses: { 200: Addon },
    errors: [...notFound, addonNotRunning, accountSuspended],
    handler: async ({ actor, params }) =>
      toAddon(await restartAddon(addons, actor, params.project_id, params.addon_id)),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: `${path}/{addon_id}`,
    operationId: "deleteAddon",
    summary: "Delete an add-on, its data and its backups",
    description: "Irreversible. Nobody reaches it from now on; its data is gone within seconds.",
    scope: "platform:write",
    params: AddonParams,
    responses: { 204: null },
    errors: [...notFound],
    handler: ({ actor, params }) => deleteAddon(addons, actor, params.project_id, params.addon_id),
  }),
];
