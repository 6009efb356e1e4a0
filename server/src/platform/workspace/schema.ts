/** The wire of the workspace snapshot and the dashboard. Nothing in it has room for a variable's value. */
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { ActivityEntry } from "#accounts/activity/schema.ts";
import { plans } from "#accounts/plans.ts";
import type { App } from "#app.ts";
import { DeploymentResponse } from "../deployments/schema.ts";
import { EnvironmentResponse, toEnvironment } from "../environments/schema.ts";
import type { EnvironmentView } from "../environments/views.ts";
import type { ProjectRow } from "../projects/projects.ts";
import { ProjectResponse, toProject } from "../projects/schema.ts";

export const WorkspaceQuery = z.object({
  workspace: z
    .string()
    .max(64)
    .optional()
    .describe(
      "`personal` or a team id; the caller's personal one, or the one a token is bound to, where absent.",
    ),
});

const page = <T extends z.ZodType>(item: T) =>
  z.object({ items: z.array(item), total: z.int().describe("How many there are in all.") });

export const AppSummary = ProjectResponse.pick({
  id: true,
  name: true,
  url: true,
  status: true,
  custom_domain: true,
  group_id: true,
  last_deployment: true,
  created_at: true,
  updated_at: true,
})
  .extend({ environments: page(EnvironmentResponse) })
  .meta({ id: "AppSummary" });
export type AppSummary = z.output<typeof AppSummary>;

const timestamp = z.iso.datetime();

export const WorkspaceSnapshot = z
  .object({
    workspace: z.string(),
    plan: z.enum(plans),
    apps: page(AppSummary),
    sandboxes: page(
      z
        .object({
          id: z.string(),
          status: z.enum(["running", "paused"]),
          template: z.string(),
          size: z.string(),
          region: z.string(),
          created_at: timestamp,
          expires_at: timestamp,
        })
        .meta({ id: "SandboxSummary" }),
    ),
    workers: page(
      z
        .object({
          id: z.string(),
          name: z.string(),
          worker_id: z.guid(),
          status: z.string(),
          last_run: z
            .object({
              run_id: z.string(),
              status: z.string(),
              created_at: timestamp,
              finished_at: timestamp.nullable(),
            })
            .nullable(),
        })
        .meta({ id: "WorkerSummary" }),
    ),
    pending_approvals: page(
      z
        .object({
          request_id: z.string(),
          run_id: z.string(),
          agent: z.string(),
          tool: z.string(),
          created_at: timestamp,
          expires_at: timestamp,
        })
        .meta({ id: "ApprovalSummary" }),
    ),
    activity: page(ActivityEntry),
  })
  .meta({ id: "WorkspaceSnapshot" });
export type WorkspaceSnapshot = z.output<typeof WorkspaceSnapshot>;

export const DashboardSummary = z
  .object({
    workspace: z.string(),
    project_count: z.int(),
    recent_deployments: z.array(
      DeploymentResponse.extend({ project_name: z.string(), environment_name: z.string() }).meta({
        id: "RecentDeployment",
      }),
    ),
    plan: z.object({
      name: z.enum(plans),
      limits: z.record(
        z.string(),
        z.object({ used: z.int(), allowed: z.int().nullable().describe("Null: as many as wanted.") }),
      ),
    }),
  })
  .meta({ id: "DashboardSummary" });
export type DashboardSummary = z.output<typeof DashboardSummary>;

const maxEnvironments = 20;

/** The environments are the project's, production first. */
export function toApp(
  app: Pick<App, "config">,
  actor: Actor,
  project: ProjectRow,
  environments: readonly [EnvironmentView, ...EnvironmentView[]],
): AppSummary {
  const { id, name, url, status, custom_domain, group_id, last_deployment, created_at, updated_at } =
    toProject(app, actor, project, environments);
  return {
    id,
    name,
    url,
    status,
    custom_domain,
    group_id,
    last_deployment,
    created_at,
    updated_at,
    environments: {
      items: environments.slice(0, maxEnvironments).map((view) => toEnvironment(app, view)),
      total: environments.length,
    },
  };
}
