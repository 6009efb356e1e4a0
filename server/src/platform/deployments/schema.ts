/** Request and response schemas of deployments. */
import { z } from "zod";
import { PersonBehind } from "#accounts/users/person.ts";
import type { App } from "#app.ts";
import { parseReference, referenceMaxLength } from "#builds/registry/reference.ts";
import { commitFields, deploymentTimes, urlOf } from "../environments/schema.ts";
import { isBranchName, isCommitId } from "../git/names.ts";
import { EnvironmentId, pageFields, pageQuery, ProjectId } from "../input/schema.ts";
import type { Tally } from "./store.ts";
import type { DeploymentNews, LogEntry } from "./logs.ts";
import { progressSchema } from "../progress.ts";
import { isOver, statuses, stepNames, stepStatuses } from "./states.ts";
import type { DeploymentRow } from "./store.ts";

const noReference =
  "must name an image as docker pull does, in lower case: registry.example.com/team/app:1.2, or with @sha256: and 64 hexadecimal digits";
const timestamp = z.iso.datetime();

const DeploymentId = z.guid().describe("Id (UUID) of the deployment.");
export const ProjectParams = z.object({ project_id: ProjectId });
export const DeploymentParams = z.object({ deployment_id: DeploymentId });
export const DeployQuery = z
  .object({
    environment_id: z.guid().optional().describe("Id (UUID) of the environment. Default: production."),
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
    image: z
      .string()
      .min(1)
      .max(referenceMaxLength)
      .transform((text, context) => {
        const reference = parseReference(text);
        if (reference) return reference.text;
        context.issues.push({ code: "custom", input: text, message: noReference });
        return z.NEVER;
      })
      .optional()
      .describe(
        "Image of a registry to deploy in place of a commit: `ghcr.io/team/app:1.2` or `ghcr.io/team/app@sha256:…`. Default registry: `docker.io`. Default tag: `latest`. Not allowed together with `commit` or `tag`. Extension.",
      ),
    rebuild: z
      .boolean()
      .default(false)
      .describe(
        "Build even if an image with the same commit, settings and variables exists, or download an image that the project already has. Gets newer base images and packages. Default: false. Extension.",
      ),
  })
  .refine(({ commit, tag, image }) => image === undefined || (commit === undefined && tag === undefined), {
    path: ["image"],
    error: "cannot be combined with commit or tag; send only one of them",
  })
  .refine(({ commit, tag }) => commit === undefined || tag === undefined, {
    path: ["tag"],
    error: "cannot be combined with commit; send only one of them",
  });
export const RestartQuery = z.object({
  environment_id: z.guid().optional().describe("Id (UUID) of the environment. Default: production."),
});
export const ListQuery = z.object({
  ...pageQuery,
  environment_id: z.guid().optional().describe("Environment of the deployments to list. Extension."),
  status: z.enum(statuses).optional().describe("Status of the deployments to list. Extension."),
});
export const StatsQuery = z.object({
  environment_id: z
    .guid()
    .optional()
    .describe("Environment of the deployments to count. Default: all of the project. Extension."),
});
export const LogsQuery = z.object({
  follow: z
    .boolean()
    .default(false)
    .describe("Stream the log as server-sent events until the deployment ends. Default: false. Extension."),
});
export const RollbackQuery = z.object({
  allow_rebuild: z
    .boolean()
    .default(false)
    .describe("Build the original commit again if its image is deleted. Default: false."),
  restore_env: z
    .boolean()
    .default(false)
    .describe(
      "Use the variables of the original deployment, not the current ones. Default: false. Extension.",
    ),
});

const DeploymentStep = z
  .object({
    name: z
      .enum(stepNames)
      .describe(
        "Name of the step. The first is `clone` for a commit and `pull` for an image. `scan` runs in parallel; the deployment does not wait for it.",
      ),
    status: z
      .enum(stepStatuses)
      .describe("Status of the step. `skipped`: not needed, or the deployment ended first."),
    started_at: timestamp.nullable().describe("Time when the step began (UTC). Null until then."),
    finished_at: timestamp.nullable().describe("Time when the step ended (UTC). Null until then."),
    duration_ms: z
      .int()
      .nullable()
      .describe("Duration of the step in milliseconds. Null until it ends, and if it never began."),
    error: z
      .string()
      .nullable()
      .describe(
        "Reason why the step failed. For a `scan` that continues after the deployment, a note. Null otherwise.",
      ),
  })
  .meta({ id: "DeploymentStep" });

const DeploymentProgress = progressSchema("DeploymentProgress", ["queued", ...stepNames]);

export const DeploymentResponse = z
  .object({
    id: DeploymentId,
    project_id: ProjectId,
    environment_id: EnvironmentId,
    number: z.int().describe("Sequence number of the deployment within its project, from 1."),
    status: z
      .enum(statuses)
      .describe(
        "Status: `queued`, `building`, `deploying`, then `live`, `failed` or `cancelled`. `superseded`: was live before a later one.",
      ),
    trigger: z
      .object({
        kind: z
          .enum(["api", "push", "rollback", "restart", "console", "agent"])
          .describe(
            "Cause of the deployment. `console`, `api` and `agent`: a deploy by a session, a token or a worker.",
          ),
        actor: z
          .object({
            kind: z.string().describe("Kind of the actor: `user`, `api_token`, `worker` or `system`."),
            id: z
              .string()
              .describe("Id of the user, token or worker; `system` for the server and for forges."),
            label: z
              .string()
              .describe(
                "E-mail address of a user, name of a token or worker, or name of a forge such as `github`.",
              ),
            user: PersonBehind,
          })
          .describe("Actor that requested the deployment."),
      })
      .describe("Cause and actor of the deployment."),
    commit: z
      .object({
        ...commitFields,
        tag: z.string().nullable().describe("Requested tag. Null if the request had none."),
      })
      .describe("Commit of the deployment."),
    image: z
      .object({
        reference: z
          .string()
          .describe(
            "Reference of the image, with registry and tag or digest: `docker.io/library/nginx:1.29`.",
          ),
        digest: z
          .string()
          .nullable()
          .describe("Digest that the reference led to, `sha256:…`. Null until the registry responds."),
      })
      .nullable()
      .describe("Image of a registry that is deployed. Null for a deployment of a commit. Extension."),
    image_tag: z
      .string()
      .nullable()
      .describe("Tag of the image in the project, such as `b12`. Null until it is built or pulled."),
    image_reused: z
      .boolean()
      .describe(
        "True if an image of the project was reused: same commit, settings and variables, or same digest.",
      ),
    url: z.string().describe("HTTPS address of the environment, such as `https://shop.apps.example.com`."),
    steps: z.array(DeploymentStep).describe("Steps of the deployment, in order."),
    progress: DeploymentProgress.nullable().describe(
      "Progress of the deployment. Null after its end. Extension.",
    ),
    error: z
      .string()
      .nullable()
      .describe(
        "Reason why the deployment failed or was cancelled, with the last output. Null if there is none.",
      ),
    rolled_back_from: z
      .guid()
      .nullable()
      .describe("Id (UUID) of the deployment that a rollback restored. Null for other deployments."),
    ...deploymentTimes,
  })
  .meta({ id: "DeploymentResponse" });
export type DeploymentResponse = z.output<typeof DeploymentResponse>;

export const DeploymentListResponse = z
  .object({
    items: z.array(DeploymentResponse).describe("Deployments of this page, newest first."),
    ...pageFields,
  })
  .meta({ id: "DeploymentListResponse" });

const entry = {
  step: z.enum(stepNames).describe("Step that wrote the output."),
  at: timestamp.describe("Time of the first line of `text` (UTC)."),
  text: z.string().describe("Complete lines of output, at least one."),
};
export const DeploymentLogEntry = z.object(entry).meta({ id: "DeploymentLogEntry" });
export const DeploymentLogEvent = z
  .discriminatedUnion("kind", [
    z.object({ kind: z.literal("log").describe("Kind of the event: new output."), ...entry }),
    z.object({
      kind: z.literal("status").describe("Kind of the event: a new status."),
      status: z
        .enum(statuses)
        .describe("New status of the deployment. The stream ends after a final status."),
      error: z
        .string()
        .nullable()
        .describe("Reason why the deployment failed or was cancelled. Null if there is none."),
    }),
  ])
  .meta({ id: "DeploymentLogEvent" });

export const BuildLog = z
  .object({
    text: z.string().describe("Output of the build, of which the first 4 MiB are kept."),
    truncated: z.boolean().describe("True if the output was longer than the 4 MiB that are kept."),
  })
  .meta({ id: "BuildLog" });

export const DeploymentStats = z
  .object({
    total: z.int().describe("Number of deployments, including running and cancelled ones."),
    succeeded: z.int().describe("Number of deployments that went live, superseded ones included."),
    failed: z.int().describe("Number of deployments that failed."),
    success_rate: z
      .number()
      .nullable()
      .describe(
        "Share of successful deployments among the successful and failed ones, 0 to 1. Null before the first.",
      ),
    average_duration_ms: z
      .int()
      .nullable()
      .describe("Average duration of successful deployments in milliseconds. Null before the first."),
    last_deployment: DeploymentResponse.nullable().describe("Newest deployment. Null before the first."),
  })
  .meta({ id: "DeploymentStats" });

/** Returns the actor for responses. The row stores no email address: a user's label is read from `users`. */
function toTriggerActor({ trigger_actor: actor, ...row }: DeploymentRow) {
  const { trigger_user_id: id, trigger_user_name: name, trigger_user_email: email } = row;
  const user = id === null || name === null || email === null ? null : { id, name, email };
  return { ...actor, label: actor.kind === "user" ? (user?.email ?? actor.label) : actor.label, user };
}

/** Returns the response of a deployment. No other function converts a row to JSON. */
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
    image: row.image_reference === null ? null : { reference: row.image_reference, digest: row.image_digest },
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
