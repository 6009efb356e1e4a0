/**
 * Overview of a workspace for its first page: a snapshot of its content, and a summary of the plan's use. Every list is
 * limited and has a total, and none contains a variable.
 */
import type { Actor } from "#accounts/actor.ts";
import { listActivity } from "#accounts/activity/list.ts";
import { planUsage } from "#accounts/plans.ts";
import { countMembers } from "#accounts/teams/teams.ts";
import { countTokens } from "#accounts/tokens/tokens.ts";
import { requireWorkspace, workspaceName, type WorkspaceParam } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { listRecentDeployments } from "../deployments/store.ts";
import { toDeployment } from "../deployments/schema.ts";
import { countFunctions } from "../functions/functions.ts";
import { countAddons } from "../addons/find.ts";
import { countProjects, overview } from "../projects/projects.ts";
import type { WorkspaceSections, Page } from "./workspace-sections.ts";
import { type DashboardSummary, toApp, type WorkspaceSnapshot } from "./schema.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

const most = { apps: 50, sandboxes: 50, workers: 50, approvals: 20, activity: 20, deployments: 10 };

export async function snapshot(
  app: Needs,
  actor: Actor,
  param: WorkspaceParam,
  sections: WorkspaceSections,
): Promise<WorkspaceSnapshot> {
  const { id, plan } = requireWorkspace(actor, param);
  const [projects, sandboxes, workers, approvals, activity] = await Promise.all([
    overview(app.db, id, most.apps),
    sections.sandboxes(app.db, id, most.sandboxes),
    sections.workers(app.db, id, most.workers),
    sections.pendingApprovals(app.db, id, most.approvals),
    listActivity(app, actor, { workspace: id, skip: 0, limit: most.activity }),
  ]);
  return {
    workspace: workspaceName(actor, id),
    plan,
    apps: pageOf(projects, ({ project, environments }) => toApp(app, actor, project, environments)),
    sandboxes: pageOf(sandboxes, ({ created_at, expires_at, ...one }) => ({
      ...one,
      created_at: created_at.toISOString(),
      expires_at: expires_at.toISOString(),
    })),
    workers: pageOf(workers, ({ last_run, ...one }) => ({
      ...one,
      last_run: last_run && {
        ...last_run,
        created_at: last_run.created_at.toISOString(),
        finished_at: last_run.finished_at?.toISOString() ?? null,
      },
    })),
    pending_approvals: pageOf(approvals, ({ created_at, expires_at, ...one }) => ({
      ...one,
      created_at: created_at.toISOString(),
      expires_at: expires_at.toISOString(),
    })),
    activity: { items: activity.items as WorkspaceSnapshot["activity"]["items"], total: activity.total },
  };
}

export async function dashboard(app: Needs, actor: Actor, param: WorkspaceParam): Promise<DashboardSummary> {
  const workspace = requireWorkspace(actor, param);
  const { id, plan } = workspace;
  const [projects, functions, addons, recent, tokens, members] = await Promise.all([
    countProjects(app.db, id),
    countFunctions(app.db, id),
    countAddons(app.db, id),
    listRecentDeployments(app.db, id, most.deployments),
    countTokens(app, actor, workspace),
    workspace.kind === "team" ? countMembers(app.db, id) : 1,
  ]);
  return {
    workspace: workspaceName(actor, id),
    project_count: projects,
    recent_deployments: recent.map((row) => ({
      ...toDeployment(app, row),
      project_name: row.project_name,
      environment_name: row.environment_name,
    })),
    plan: {
      name: plan,
      limits: planUsage(plan, { projects, functions, addons, apiTokens: tokens, teamMembers: members }),
    },
  };
}

function pageOf<From, To>({ items, total }: Page<From>, to: (item: From) => To): Page<To> {
  return { items: items.map(to), total };
}
