/** The wire of environments, and what projects share with them: branches, variables, the last deployment. */
import { z } from "zod";
import type { App } from "#app.ts";
import { isBranchName } from "../git/names.ts";
import { environmentStatuses, statusOf } from "./status.ts";
import { sizeNames, type AppSize } from "./sizes.ts";
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
    error: "must be a name of letters, digits and _ that begins with no digit",
  });
const VariableValue = z.string().refine((value) => !value.includes("\0"), { error: "must not contain NUL" });
const tooMany = { error: "must be at most 200 variables of 64 KiB in all" };

export const Variables = z.record(VariableName, VariableValue).refine(fit, tooMany);
/** A string sets, null removes. */
export const VariablesChange = z.record(VariableName, VariableValue.nullable()).refine(fit, tooMany);
/** As they are answered: names are what they were when they were set. */
export const VariablesResponse = z
  .record(z.string(), z.string().meta({ "x-kontor-secret": true }))
  .meta({ id: "EnvVars" });

const kind = z.enum(["production", "staging", "dev", "preview"]);

export const EnvironmentParams = z.object({ project_id: z.guid(), env_id: z.guid() });

export const EnvironmentCreate = z
  .strictObject({
    name: z
      .string()
      .regex(/^[a-z0-9](?:[a-z0-9]|-(?!-|$)){0,61}$/, {
        error: "must be of a-z, 0-9 and single hyphens between them",
      })
      .describe("Part of its host: `{slug}--{name}.{apps_domain}`.")
      .meta({ example: "staging" }),
    kind: kind.exclude(["production"]),
    branch: Branch,
    env_vars: Variables.default({}),
  })
  .meta({ id: "EnvironmentCreate" });
export type EnvironmentCreate = z.output<typeof EnvironmentCreate>;

export const EnvironmentUpdate = z
  .strictObject({
    branch: Branch.optional(),
    env_vars: VariablesChange.optional().describe(
      "Changes to the stored variables. A string sets a variable, null removes it, and `********` or the stored value's hint keeps it. Applies at the next deploy, restart or wake.",
    ),
    size: z.enum(sizeNames).optional(),
  })
  .meta({ id: "EnvironmentUpdate" });
export type EnvironmentUpdate = z.output<typeof EnvironmentUpdate>;

export const LastDeployment = z
  .object({
    id: z.guid(),
    environment_id: z.guid(),
    number: z.int(),
    status: z.enum(["queued", "building", "deploying", "live", "failed", "cancelled", "superseded"]),
    commit: z.object({
      sha: z.string().nullable(),
      message: z.string().nullable(),
      author: z.string().nullable(),
    }),
    created_at: z.iso.datetime(),
    started_at: z.iso.datetime().nullable(),
    finished_at: z.iso.datetime().nullable(),
  })
  .meta({ id: "LastDeployment" });

export const EnvironmentResponse = z
  .object({
    id: z.guid(),
    project_id: z.guid(),
    name: z.string(),
    kind,
    branch: z.string(),
    url: z.string(),
    status: z
      .enum(environmentStatuses)
      .describe("What a visitor meets; `last_deployment` says what is under way, or went wrong, meanwhile."),
    size: z.enum(sizeNames),
    is_production: z.boolean(),
    last_deployment: LastDeployment.nullable(),
    created_at: z.iso.datetime(),
    updated_at: z.iso.datetime(),
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
