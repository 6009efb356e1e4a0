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
import { ProjectId } from "../input/schema.ts";
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
    summary: "Analyze a project's repository",
    description:
      "Fetches the newest commit of the production branch, and detects framework, commands and port. Executes nothing from the repository. Settings of the project take precedence over detected ones. A fetch that takes more than 60 seconds gets 409 `repository_unavailable`.",
    scope: "platform:write",
    params: z.object({ project_id: ProjectId }),
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
