import { z } from "zod";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { environmentNotFound } from "../environments/errors.ts";
import { projectNotFound } from "../projects/errors.ts";
import { onAddon } from "../audit-targets.ts";
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
  ProjectParams,
  readOnlyFields,
  toAddon,
  toAddonWithUrls,
} from "./schema.ts";
import { updateAddon } from "./update.ts";

const common = { api: "platform", tag: "Add-ons" } as const;
const path = "/api/v1/projects/{project_id}/addons";
const notFound = [projectNotFound, addonNotFound] as const;

export const addonRoutes = (addons: Addons): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path,
    operationId: "listAddons",
    summary: "List a project's add-ons",
    description: "Returns the newest first.",
    scope: "platform:read",
    params: ProjectParams,
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
    summary: "Create an add-on",
    description:
      "Creates a PostgreSQL or Redis database for the project. The response has `status: provisioning`; the add-on accepts connections once it is `running`. The project's processes get `DATABASE_URL` or `REDIS_URL` at their next deploy, restart or wake. Fields that are not listed here are stored under `options`.",
    scope: "platform:write",
    params: ProjectParams,
    body: AddonCreate,
    responses: { 201: Addon },
    errors: [projectNotFound, environmentNotFound, addonExists, noPublicPort, planLimit, accountSuspended],
    idempotent: true,
    replay: {
      activity: "addon.created",
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
    summary: "Get an add-on",
    description: "Returns the add-on with its connection URLs, which contain the password.",
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
    summary: "Update an add-on",
    description: "Opens or closes the public port. Closing it ends the connections through it.",
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
    summary: "Restart an add-on",
    description:
      "Shuts the database down cleanly and starts it again. Responds once it accepts connections, or after one minute. Committed data is kept.",
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
    summary: "Delete an add-on",
    description:
      "Deletes the add-on, its data and its backups, irreversibly. It is unreachable at once; the server removes its data within seconds.",
    scope: "platform:write",
    params: AddonParams,
    responses: { 204: null },
    errors: [...notFound],
    handler: ({ actor, params }) => deleteAddon(addons, actor, params.project_id, params.addon_id),
  }),
];
