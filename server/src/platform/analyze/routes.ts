import { z } from "zod";
import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import {
  branchNotFound,
  hostKeyChanged,
  repositoryEmpty,
  repositoryRefused,
  repositoryTooLarge,
  repositoryUnavailable,
} from "../git/errors.ts";
import { projectNotFound } from "../projects/errors.ts";
import { analyzeProject } from "./analyze.ts";
import { analysisQueueFull, settingsRefused } from "./errors.ts";
import { RepoAnalysis } from "./schema.ts";

export const analyzeRoutes = (app: App): Route[] => [
  defineRoute({
    api: "platform",
    tag: "Projects",
    method: "POST",
    path: "/api/v1/projects/{project_id}/analyze",
    operationId: "analyzeProject",
    summary: "What the repository is, and the recipe it would be built by",
    description:
      "Of the newest commit of production's branch, which is fetched and read; nothing of it is run. Settings of the project beat what is found.",
    scope: "platform:write",
    params: z.object({ project_id: z.guid() }),
    responses: { 200: RepoAnalysis },
    errors: [
      projectNotFound,
      repositoryEmpty,
      branchNotFound,
      repositoryRefused,
      repositoryUnavailable,
      repositoryTooLarge,
      hostKeyChanged,
      settingsRefused,
      accountSuspended,
      analysisQueueFull,
    ],
    handler: ({ actor, params }) => analyzeProject(app, actor, params.project_id),
  }),
];
