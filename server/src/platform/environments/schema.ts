/**
 * Request and response schemas of environments. Projects share those of branches, variables and the last deployment.
 */
import { z } from "zod";
import type { App } from "#app.ts";
import { isBranchName } from "../git/names.ts";
import { EnvironmentId, ProjectId } from "../input/schema.ts";
import { environmentStatuses, statusOf } from "./status.ts";
import { appSizes, sizeNames, type AppSize } from "./sizes.ts";
import { fit } from "./variables.ts";
import type { EnvironmentView, LastDeploymentRow } from "./views.ts";

export const Branch = z
  .string()
  .refine(isBranchName, { error: "must be the name of a branch" })
  .meta({ example: "main" });

const VariableName = z
  .string()
  .max(256)
  .regex(/^(?!__proto__$)[A-Za-z_][A-Za-z0-9_]*$/, {
    error: "must contain letters, digits and _ only, and not begin with a digit",
  });
const VariableValue = z.string().refine((value) => !value.includes("\0"), { error: "must not contain NUL" });
const tooMany = { error: "must have at most 200 variables, and 64 KiB in all" };

export const Variables = z.record(VariableName, VariableValue).refine(fit, tooMany);
/** Changes of variables. A string sets a variable, null removes it. */
export const VariablesChange = z.record(VariableName, VariableValue.nullable()).refine(fit, tooMany);
/** Variables in responses. Their names are not checked, because older rows may have names that are refused today. */
export const VariablesResponse = z
  .record(z.string(), z.string().meta({ "x-kontor-secret": true }))
  .meta({ id: "EnvVars" });

const kind = z.enum(["production", "staging", "dev", "preview"]);

const sizes = sizeNames
  .map((name) => `\`${name}\` (${appSizes[name].cpu} CPU, ${appSizes[name].memoryMb} MiB)`)
  .join(", ");

export const EnvironmentParams = z.object({ project_id: ProjectId, env_id: EnvironmentId });

export const EnvironmentCreate = z
  .strictObject({
    name: z
      .string()
      .regex(/^[a-z0-9](?:[a-z0-9]|-(?!-|$)){0,61}$/, {
        error: "must contain letters a-z, digits and single hyphens between them only",
      })
      .describe(
        "Name of the environment, unique in the project; part of the host `{slug}--{name}.{apps_domain}`.",
      )
      .meta({ example: "staging" }),
    kind: kind
      .exclude(["production"])
      .describe("Purpose of the environment, such as `staging`. A label: all kinds work alike."),
    branch: Branch.describe("Branch that the environment deploys, such as `develop`."),
    env_vars: Variables.default({}).describe(
      "Variables that override the project's in this environment: at most 200, 64 KiB in all. Default: none.",
    ),
  })
  .meta({ id: "EnvironmentCreate" });
export type EnvironmentCreate = z.output<typeof EnvironmentCreate>;

export const EnvironmentUpdate = z
  .strictObject({
    branch: Branch.optional().describe(
      "Branch that the environment deploys, such as `develop`. The change itself deploys nothing.",
    ),
    env_vars: VariablesChange.optional().describe(
      "Changes to the stored variables. A string sets a variable, null removes it, and `********` or the stored value's hint keeps it. Applies at the next deploy, restart or wake.",
    ),
    size: z.enum(sizeNames).optional().describe(`Machine size, within the plan: ${sizes}.`),
  })
  .meta({ id: "EnvironmentUpdate" });
export type EnvironmentUpdate = z.output<typeof EnvironmentUpdate>;

/** Fields of a deployment's commit. */
export const commitFields = {
  sha: z
    .string()
    .nullable()
    .describe("Full commit id, 40 or 64 hexadecimal digits. Null until it is known, and for an image."),
  message: z
    .string()
    .nullable()
    .describe(
      "Commit message, at most 4,000 characters. Null until the commit is fetched, and for an image.",
    ),
  author: z
    .string()
    .nullable()
    .describe(
      "Author of the commit, as `Name <address>`. Null until the commit is fetched, and for an image.",
    ),
};

/** Times of a deployment. */
export const deploymentTimes = {
  created_at: z.iso.datetime().describe("Time of the request to deploy (UTC)."),
  started_at: z.iso.datetime().nullable().describe("Time when the work began (UTC). Null until then."),
  finished_at: z.iso.datetime().nullable().describe("Time when the deployment ended (UTC). Null until then."),
};

export const LastDeployment = z
  .object({
    id: z.guid().describe("Id (UUID) of the deployment."),
    environment_id: EnvironmentId,
    number: z.int().describe("Sequence number of the deployment within its project, from 1."),
    status: z
      .enum(["queued", "building", "deploying", "live", "failed", "cancelled", "superseded"])
      .describe("Status of the deployment. `superseded`: was live before a later one."),
    commit: z.object(commitFields).describe("Commit of the deployment."),
    ...deploymentTimes,
  })
  .meta({ id: "LastDeployment" });

export const EnvironmentResponse = z
  .object({
    id: z.guid().describe("Id (UUID) of the environment."),
    project_id: ProjectId,
    name: z.string().describe("Name of the environment, such as `staging`; unique in the project."),
    kind: kind.describe("Purpose of the environment. A project has exactly one `production`."),
    branch: z.string().describe("Branch that the environment deploys, such as `main`."),
    url: z
      .string()
      .describe("HTTPS address of the environment, such as `https://shop--staging.apps.example.com`."),
    status: z
      .enum(environmentStatuses)
      .describe(
        "Status for visitors. A running or failed deployment does not change `live`; see `last_deployment`.",
      ),
    size: z.enum(sizeNames).describe(`Size of the app's machine: ${sizes}.`),
    is_production: z
      .boolean()
      .describe("True for the production environment, which is deleted only with its project."),
    last_deployment: LastDeployment.nullable().describe(
      "Newest deployment of the environment. Null before the first.",
    ),
    created_at: z.iso.datetime().describe("Time of creation (UTC)."),
    updated_at: z.iso.datetime().describe("Time of the last change to the environment's settings (UTC)."),
  })
  .meta({ id: "EnvironmentResponse" });
export type EnvironmentResponse = z.output<typeof EnvironmentResponse>;

/** Fields of the record that a PATCH accepts and ignores. */
export const readOnlyFields = Object.keys(EnvironmentResponse.shape).filter(
  (field) => !(field in EnvironmentUpdate.shape),
);

export function toEnvironment(app: Pick<App, "config">, row: EnvironmentView): EnvironmentResponse {
  return {
    id: row.id,
    project_id: row.project_id,
    name: row.name,
    kind: row.kind,
    branch: row.branch,
    url: urlOf(app, row.host_label),
    status: statusOf(row),
    size: row.size as AppSize,
    is_production: row.kind === "production",
    last_deployment: row.last && toLastDeployment(row.id, row.last),
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

export function urlOf({ config }: Pick<App, "config">, hostLabel: string): string {
  return `https://${hostLabel}.${config.appsDomain}`;
}

export function toLastDeployment(
  environmentId: string,
  row: LastDeploymentRow,
): z.output<typeof LastDeployment> {
  return {
    id: row.id,
    environment_id: environmentId,
    number: row.number,
    status: row.status,
    commit: { sha: row.commit_sha, message: row.commit_message, author: row.commit_author },
    created_at: row.created_at.toISOString(),
    started_at: row.started_at?.toISOString() ?? null,
    finished_at: row.finished_at?.toISOString() ?? null,
  };
}
