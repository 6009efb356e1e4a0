/** Wire schemas of the workspace snapshot and the dashboard. No field can contain the value of a variable. */
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
      "`personal` or a team id. Default: the workspace that the token is bound to, else the personal one.",
    ),
});

const page = <T extends z.ZodType>(item: T, items: string) =>
  z.object({
    items: z.array(item).describe(items),
    total: z.int().describe("Total number, including items that are not in `items`."),
  });

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
  .extend({
    environments: page(EnvironmentResponse, "Environments, production first; at most 20.").describe(
      "Environments of the app.",
    ),
  })
  .meta({ id: "AppSummary" });
export type AppSummary = z.output<typeof AppSummary>;

const timestamp = z.iso.datetime();

export const WorkspaceSnapshot = z
  .object({
    workspace: z.string().describe("Workspace of the snapshot: `personal` or a team id."),
    plan: z.enum(plans).describe("Plan of the workspace, which sets its limits."),
    apps: page(AppSummary, "Apps, newest first; at most 50.").describe(
      "Apps of the workspace: its projects with their environments.",
    ),
    sandboxes: page(
      z
        .object({
          id: z.string().describe("Id of the sandbox, such as `sbx_3k9x0c1m5r7t`."),
          status: z
            .enum(["running", "paused"])
            .describe("`paused`: stored as a snapshot, without a running machine."),
          template: z.string().describe("Template as given at creation, such as `python-3.12`."),
          size: z.string().describe("Size of the machine: `small`, `medium` or `large`."),
          region: z.string().describe("Code of the region that the sandbox runs in."),
          created_at: timestamp.describe("Time of creation."),
          expires_at: timestamp.describe(
            "Time at which a running sandbox is terminated, or paused if its `on_timeout` is `pause`.",
          ),
        })
        .meta({ id: "SandboxSummary" }),
      "Sandboxes, newest first; at most 50.",
    ).describe("Running and paused sandboxes of the workspace."),
    workers: page(
      z
        .object({
          id: z.string().describe("Id of the agent, such as `agt_3k9x0c1m5r7t`."),
          name: z.string().describe("Name of the agent."),
          worker_id: z.guid().describe("Identity (UUID) under which the agent acts on the platform API."),
          status: z
            .string()
            .describe("`paused`, `running` while the newest run is not finished, else `idle`."),
          last_run: z
            .object({
              run_id: z.string().describe("Id of the run, such as `run_3k9x0c1m5r7t`."),
              status: z
                .string()
                .describe(
                  "Status of the run: `queued`, `running`, `pending_approval`, `completed` or `failed`.",
                ),
              created_at: timestamp.describe("Time at which the run was created."),
              finished_at: timestamp.nullable().describe("Time at which the run ended. Null until then."),
            })
            .nullable()
            .describe("Newest run of the agent. Null before the first."),
        })
        .meta({ id: "WorkerSummary" }),
      "Agents, newest first; at most 50.",
    ).describe("Agents of the workspace, without archived ones."),
    pending_approvals: page(
      z
        .object({
          request_id: z.string().describe("Id of the approval, such as `apr_3k9x0c1m5r7t`."),
          run_id: z.string().describe("Id of the run that waits, such as `run_3k9x0c1m5r7t`."),
          agent: z.string().describe("Name of the agent."),
          tool: z.string().describe("Name of the tool that the agent wants to call."),
          created_at: timestamp.describe("Time of the request."),
          expires_at: timestamp.describe("Time at which the approval expires without a decision."),
        })
        .meta({ id: "ApprovalSummary" }),
      "Approvals, newest first; at most 20.",
    ).describe("Tool calls of agents that wait for a person's approval."),
    activity: page(ActivityEntry, "Audit entries, newest first; at most 20.").describe(
      "Audit log of the workspace, without reads and runs.",
    ),
  })
  .meta({ id: "WorkspaceSnapshot" });
export type WorkspaceSnapshot = z.output<typeof WorkspaceSnapshot>;

export const DashboardSummary = z
  .object({
    workspace: z.string().describe("Workspace of the summary: `personal` or a team id."),
    project_count: z.int().describe("Number of projects in the workspace."),
    recent_deployments: z
      .array(
        DeploymentResponse.extend({
          project_name: z.string().describe("Name of the project."),
          environment_name: z.string().describe("Name of the environment, such as `production`."),
        }).meta({
          id: "RecentDeployment",
        }),
      )
      .describe("Deployments of all projects, newest first; at most 10."),
    plan: z
      .object({
        name: z.enum(plans).describe("Plan of the workspace."),
        limits: z
          .record(
            z.string(),
            z.object({
              used: z.int().describe("Number in use, such as the number of projects."),
              allowed: z.int().nullable().describe("Maximum number that the plan allows. Null: no limit."),
            }),
          )
          .describe("Usage per limit: `projects`, `functions`, `addons`, `api_tokens` and `team_members`."),
      })
      .describe("Plan of the workspace and the use of its limits."),
  })
  .meta({ id: "DashboardSummary" });
export type DashboardSummary = z.output<typeof DashboardSummary>;

const maxEnvironments = 20;

/** Returns the app of a project for the snapshot. `environments` belong to the project, production first. */
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
