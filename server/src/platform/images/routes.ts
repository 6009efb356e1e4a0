import { z } from "zod";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { ProjectId } from "../input/schema.ts";
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
    summary: "List a project's images",
    description:
      "Returns the newest first. Pinned images are kept. The newest ten others are kept for 30 days, within the plan's total size. The total is 5 GiB on starter, 20 GiB on pro and 50 GiB on team.",
    scope: "platform:read",
    params: z.strictObject({ project_id: ProjectId }),
    responses: { 200: z.array(RegistryImage) },
    errors: [projectNotFound],
    handler: ({ actor, params }) => list(app, actor, params.project_id),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: `${path}/{tag}`,
    operationId: "deleteImage",
    summary: "Delete an image",
    description:
      "A live image cannot be deleted: 409 `image_live`. A later rollback to a deleted image requires `allow_rebuild=true`.",
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
    summary: "Scan an image for vulnerabilities",
    description:
      "Checks the Debian packages against Debian's security suite, and the npm lockfile against npm's registry. Executes nothing from the image.",
    scope: "platform:write",
    params: ImageParams,
    responses: { 200: ScanReport },
    errors: [projectNotFound, imageNotFound],
    handler: ({ actor, params }) => scan(app, actor, params.project_id, params.tag),
  }),
];
