import { z } from "zod";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { projectNotFound } from "../projects/errors.ts";
import { imageLive, imageNotFound } from "./errors.ts";
import { deleteImage, list, scan } from "./images.ts";
import { ImageParams, RegistryImage, ScanReport } from "./schema.ts";

const common = { api: "platform", tag: "Registry" } as const;
const path = "/api/v1/projects/{project_id}/images";

export const imageRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path,
    operationId: "listImages",
    summary: "Images built for a project, newest first",
    description:
      "Pinned ones stay. Of the others the newest ten are kept, for thirty days, within the plan's bytes.",
    scope: "platform:read",
    params: z.strictObject({ project_id: z.guid() }),
    responses: { 200: z.array(RegistryImage) },
    errors: [projectNotFound],
    handler: ({ actor, params }) => list(app, actor, params.project_id),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: `${path}/{tag}`,
    operationId: "deleteImage",
    summary: "Delete an image other than the live one",
    description: "A rollback to it is refused from then on, unless it may build again.",
    scope: "platform:write",
    params: ImageParams,
    responses: { 204: null },
    errors: [projectNotFound, imageNotFound, imageLive],
    handler: ({ actor, params }) => deleteImage(app, actor, params.project_id, params.tag),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/{tag}/scan`,
    operationId: "scanImage",
    summary: "Look an image through for known faults",
    description:
      "Debian's security suite for its packages, npm's registry for its lockfile. Nothing of the image is run.",
    scope: "platform:write",
    params: ImageParams,
    responses: { 200: ScanReport },
    errors: [projectNotFound, imageNotFound],
    handler: ({ actor, params }) => scan(app, actor, params.project_id, params.tag),
  }),
];
