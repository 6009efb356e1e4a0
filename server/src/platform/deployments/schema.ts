/** The wire of deployments. */
import { z } from "zod";
import { PersonBehind } from "#accounts/users/person.ts";
import type { App } from "#app.ts";
import { urlOf } from "../environments/schema.ts";
import { isBranchName, isCommitId } from "../git/names.ts";
import type { Tally } from "./store.ts";
import type { DeploymentNews, LogEntry } from "./logs.ts";
import { progressSchema } from "../progress.ts";
import { isOver, statuses, stepNames, stepStatuses } from "./states.ts";
import type { DeploymentRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const ProjectParams = z.object({ project_id: z.guid() });
export const DeploymentParams = z.object({ deployment_id: z.guid() });
export const DeployQuery = z
  .object({
    environment_id: z.guid().optional().describe("Production where absent."),
    commit: z
      .string()
      .refine(isCommitId, { error: "must be a whole commit id, 40 or 64 hexadecimal digits" })
      .optional()
      .describe("Id of the commit to deploy. Default: the newest commit of the branch. Extension."),
    tag: z
      .string()
      .refine(isBranchName, { error: "must be the name of a tag, without refs/tags/" })
      .optional()
      .describe("Name of the tag to deploy. Not allowed together with `commit`. Extension."),
    rebuild: z
      .boolean()
      .default(false)
      .describe(
        "Build even if an image with the same commit, settings and variables exists. Gets newer base images and packages. Default: false. Extension.",
      ),
  })
  .refine(({ commit, tag }) => commit === undefined || tag === undefined, {
    path: ["tag"],
    error: "is given in place of commit, not beside it",
  });
export const RestartQuery = z.object({
  environment_id: z.guid().optional().describe("Production where absent."),
});
export const ListQuery = z.object({
  skip: z.int().min(0).default(0),
  limit: z.int().min(1).max(100).default(20),
  environment_id: z.guid().optional().describe("Environment of the deployments to list. Extension."),
  status: z.enum(statuses).optional().describe("Status of the deployments to list. Extension."),
});
export const StatsQuery = z.object({
  environment_id: z
    .guid()
    .optional()
    .describe("Environment of the deployments to count. Default: all of the project. Extension."),
});
export const LogsQuery = z.object({ follow: z.boolean().default(false) });
export const RollbackQuery = z.object({
  allow_rebuild: z
    .boolean()
    .default(false)
    .describe("Fetch and build the original commit again where the image is not kept any more."),
  restore_env: z
    .boolean()
    .default(false)
    .describe("An extension: with the variables it had, not those of today."),
});

export const DeploymentStep = z
  .object({
    name: z.enum(stepNames),
    status: z.enum(stepStatuses),
    started_at: timestamp.nullable(),
    finished_at: timestamp.nullable(),
    duration_ms: z.int().nullable(),
    error: z.string().nullable(),
  })
  .meta({ id: "DeploymentStep" });

export const DeploymentProgress = progressSchema("DeploymentProgress", ["queued", ...stepNames]);

export const DeploymentResponse = z
  .object({
    id: z.guid(),
    project_id: z.guid(),
    environment_id: z.guid(),
    number: z.int().describe("Counts up within the project."),
    status: z
      .enum(statuses)
      .describe(
        "`queued → building → deploying → live`, or `failed` or `cancelled`; `superseded` once a later one is live.",
      ),
    trigger: z.object({
      kind: z.enum(["api", "push", "rollback", "restart", "console", "agent"]),
      actor: z.object({ kind: z.string(), id: z.string(), label: z.string(), user: PersonBehind }),
    }),
    commit: z.object({
      sha: z.string().nullable(),
      message: z.string().nullable(),
      author: z.string().nullable(),
      tag: z.string().nullable().describe("Requested tag. Null if the request had none."),
    }),
    image_tag: z.string().nullable(),
    image_reused: z
      .boolean()
      .describe("True if an earlier build's image was reused: same commit, settings and variables."),
    url: z.string(),
    steps: z.array(DeploymentStep),
    progress: DeploymentProgress.nullable().describe(
      "Progress of the deployment. Null after its end. Extension.",
    ),
    error: z.string().nullable().describe("Why it failed, and what was said last."),
    rolled_back_from: z.guid().nullable().describe("Of a rollback: the deployment whose image it is."),
    created_at: timestamp,
    started_at: timestamp.nullable(),
    finished_at: timestamp.nullable(),
  })
  .meta({ id: "DeploymentResponse" });
export type DeploymentResponse = z.output<typeof DeploymentResponse>;

export const DeploymentListResponse = z
  .object({ items: z.array(DeploymentResponse), total: z.int(), skip: z.int(), limit: z.int() })
  .meta({ id: "DeploymentListResponse" });

const entry = {
  step: z.enum(stepNames),
  at: timestamp,
  text: z.string().describe("One or more whole lines, as they were said."),
};
export const DeploymentLogEntry = z.object(entry).meta({ id: "DeploymentLogEntry" });
export const DeploymentLogEvent = z
  .discriminatedUnion("kind", [
    z.object({ kind: z.literal("log"), ...entry }),
    z.object({ kind: z.literal("status"), status: z.enum(statuses), error: z.string().nullable() }),
  ])
  .meta({ id: "DeploymentLogEvent" });

export const BuildLog = z
  .object({ text: z.string(), truncated: z.boolean().describe("More was said than is kept.") })
  .meta({ id: "BuildLog" });

export const DeploymentStats = z
  .object({
    total: z.int(),
    succeeded: z.int(),
    failed: z.int(),
    success_rate: z.number().nullable().describe("0 to 1, of those that succeeded or failed; null before."),
    average_duration_ms: z.int().nullable().describe("Of those that succeeded."),
    last_deployment: DeploymentResponse.nullable(),
  })
  .meta({ id: "DeploymentStats" });

/** The row keeps no address: a person's label is read with the person. */
function toTriggerActor({ trigger_actor: actor, ...row }: DeploymentRow) {
  const { trigger_user_id: id, trigger_user_name: name, trigger_user_email: email } = row;
  const user = id === null || name === null || email === null ? null : { id, name, email };
  return { ...actor, label: actor.kind === "user" ? (user?.email ?? actor.label) : actor.label, user };
}

/** The only way from a row to JSON. */
export function toDeployment(app: Pick<App, "config">, row: DeploymentRow): DeploymentResponse {
  return {
    id: row.id,
    project_id: row.project_id,
    environment_id: row.environment_id,
    number: row.number,
    status: row.status,
    trigger: { kind: row.trigger_kind, actor: toTriggerActor(row) },
    commit: {
      sha: row.commit_sha ?? row.wanted_sha,
      message: row.commit_message,
      author: row.commit_author,
      tag: row.wanted_tag,
    },
    image_tag: row.image_tag,
    image_reused: row.image_reused,
    url: urlOf(app, row.host_label),
    steps: row.steps.map((step) => ({
      ...step,
      duration_ms:
        step.started_at === null || step.finished_at === null
          ? null
          : Date.parse(step.finished_at) - Date.parse(step.started_at),
    })),
    progress: isOver(row.status) ? null : row.progress,
    error: row.error,
    rolled_back_from: row.rolled_back_from,
    created_at: row.created_at.toISOString(),
    started_at: row.started_at?.toISOString() ?? null,
    finished_at: row.finished_at?.toISOString() ?? null,
  };
}

export function toStats(
  app: Pick<App, "config">,
  { total, succeeded, failed, average_ms, last }: Tally & { last: DeploymentRow | undefined },
): z.output<typeof DeploymentStats> {
  const ended = succeeded + failed;
  return {
    total,
    succeeded,
    failed,
    success_rate: ended === 0 ? null : succeeded / ended,
    average_duration_ms: average_ms === null ? null : Math.round(average_ms),
    last_deployment: last ? toDeployment(app, last) : null,
  };
}

export function toLogEntry({ step, at, text }: LogEntry): z.output<typeof DeploymentLogEntry> {
  return { step, at: at.toISOString(), text };
}

export function toLogEvent(news: DeploymentNews): z.output<typeof DeploymentLogEvent> {
  return "status" in news
    ? { kind: "status", status: news.status, error: news.error }
    : { kind: "log", ...toLogEntry(news) };
}
