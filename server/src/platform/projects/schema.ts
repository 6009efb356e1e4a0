/** The wire of projects. */
import { posix } from "node:path";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { workspaceName } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { maxCommandLength } from "#builds/detection/dockerfile.ts";
import { frameworks, pythonFrameworks } from "#builds/detection/frameworks.ts";
import { plainPath } from "#builds/detection/inspection.ts";
import { baseUrl, hostname } from "#config.ts";
import {
  Branch,
  LastDeployment,
  toLastDeployment,
  urlOf,
  Variables,
  VariablesChange,
} from "../environments/schema.ts";
import { environmentStatuses, statusOf } from "../environments/status.ts";
import type { EnvironmentView } from "../environments/views.ts";
import { isReserved, slugPattern } from "./names.ts";
import { parseRepositoryUrl } from "./repository-url.ts";
import type { ProjectRow } from "./store.ts";

export const Slug = z
  .string()
  .regex(slugPattern, {
    error: "must be 3 to 40 of a-z, 0-9 and single hyphens, begin with a letter and end with no hyphen",
  })
  .refine((name) => !isReserved(name), { error: "is a reserved name" })
  .describe("The slug: the first label of its address. Unique over projects and functions.")
  .meta({ example: "shop" });

const RepositoryUrl = z
  .string()
  .min(1)
  .max(2048)
  .superRefine((text, context) => {
    const parsed = parseRepositoryUrl(text);
    if ("problem" in parsed) context.addIssue({ code: "custom", message: parsed.problem });
  })
  .describe(
    "`https://…`, `ssh://…` or `user@host:path`, without credentials; null: hosted here, and pushed to.",
  )
  .meta({ example: "https://git.example.com/team/shop.git" });

/** What stands in a Dockerfile or an answer: a line of text. */
const line = (max: number) =>
  z
    .string()
    .min(1)
    .max(max)
    .regex(/^\P{Cc}*$/u, { error: "must be one line without control characters" });

const command = line(maxCommandLength).describe("A line of `sh`; null: found out at each deployment.");

const Directory = z
  .string()
  .max(200)
  .refine((path) => plainPath(path) !== undefined, {
    error: "must lie in the repository, and be of letters, digits and . _ - @ +",
  })
  .transform((path) => posix.join("/", plainPath(path)!));

const OutputDirectory = z
  .string()
  .min(1)
  .max(200)
  .refine((path) => plainPath(path) !== undefined, {
    error: "must lie below the root directory, and be of letters, digits and . _ - @ +",
  });

/** One that detection can be told to take. */
const Framework = z.enum([
  ...frameworks.map(({ id }) => id),
  ...pythonFrameworks.map(({ id }) => id),
  "node",
  "python",
  "go",
  "static",
]);

const HealthCheckPath = z
  .string()
  .max(1000)
  .regex(/^\/[\w.~!&()*+,;=:@%/?-]*$/, {
    error: "must begin with / and hold what the path of a URL may, unquoted",
  });

const Hostname = z
  .string()
  .max(253)
  .regex(
    /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*\.[a-z][a-z0-9-]*[a-z0-9]$/i,
    {
      error: "must be a host name such as www.example.com",
    },
  )
  .transform((name) => name.toLowerCase())
  .meta({ example: "www.example.com" });

/** What is laid down for builds and starts; null is found out anew at each deployment. */
const settings = {
  repo_url: RepositoryUrl.nullish(),
  framework: Framework.nullish(),
  install_command: command.nullish(),
  build_command: command.nullish(),
  start_command: command.nullish(),
  output_directory: OutputDirectory.nullish(),
  port: z.int().min(1).max(65_535).nullish(),
  git_token: line(4096).nullish().describe("For a private https repository; stored sealed, never answered."),
  workspace: z.string().max(64).nullish().describe("`personal` or a team id."),
};

export const ProjectCreate = z
  .strictObject({
    name: Slug,
    ...settings,
    branch: Branch.default("main"),
    root_directory: Directory.prefault("/"),
    health_check_path: HealthCheckPath.default("/"),
    env_vars: Variables.default({}),
    auto_deploy: z.boolean().default(true),
    region: z.string().max(64).nullish(),
    custom_domain: Hostname.nullish(),
    isolation: z.enum(["native", "gvisor"]).default("native"),
  })
  .refine(({ git_token, repo_url }) => !git_token || isHttps(repo_url), {
    path: ["git_token"],
    error: "is for an https repository; one by ssh is opened by the project's deploy key",
  })
  .meta({ id: "ProjectCreate" });
export type ProjectCreate = z.output<typeof ProjectCreate>;

/** As it is answered, so that GET → change → PATCH works. */
const AnsweredDomain = z.looseObject({ hostname: Hostname });

export const ProjectUpdate = z
  .strictObject({
    name: Slug.optional(),
    ...settings,
    branch: Branch.optional(),
    root_directory: Directory.optional(),
    health_check_path: HealthCheckPath.optional(),
    env_vars: VariablesChange.optional().describe(
      "Changes to the stored variables. A string sets a variable, null removes it, and `********` or the stored value's hint keeps it. Applies at the next deploy, restart or wake.",
    ),
    auto_deploy: z.boolean().optional(),
    region: z.string().max(64).optional(),
    custom_domain: z
      .union([Hostname, AnsweredDomain.transform((domain) => domain.hostname)])
      .nullish()
      .describe("Null removes it."),
    isolation: z.enum(["native", "gvisor"]).optional(),
  })
  .meta({ id: "ProjectUpdate" });
export type ProjectUpdate = z.output<typeof ProjectUpdate>;

export const CustomDomain = z
  .object({
    hostname: z.string(),
    status: z.enum(["pending", "verified", "failed"]),
    cname_target: z.string().describe("What its CNAME has to be."),
    checked_at: z.iso.datetime().nullable(),
    error: z.string().nullable(),
  })
  .meta({ id: "CustomDomain" });

const record = {
  id: z.guid(),
  name: z.string(),
  slug: z.string(),
  url: z.string(),
  repo_url: z.string().nullable(),
  git_url: z
    .string()
    .nullable()
    .describe("Where to push to, with a token as password; null where the repository is elsewhere."),
  branch: z.string(),
  root_directory: z.string(),
  framework: z.string().nullable(),
  install_command: z.string().nullable(),
  build_command: z.string().nullable(),
  start_command: z.string().nullable(),
  output_directory: z.string().nullable(),
  port: z.int().nullable(),
  health_check_path: z.string(),
  auto_deploy: z.boolean(),
  isolation: z.enum(["native", "gvisor"]),
  region: z.string(),
  status: z.enum(environmentStatuses).describe("Of the production environment: what a visitor meets."),
  production_environment_id: z.guid(),
  last_deployment: LastDeployment.nullable().describe("The newest in any environment."),
  custom_domain: CustomDomain.nullable(),
  workspace: z.string(),
  group_id: z.guid().nullable(),
  created_at: z.iso.datetime(),
  updated_at: z.iso.datetime(),
};

export const ProjectResponse = z.object(record).meta({ id: "ProjectResponse" });
export type ProjectResponse = z.output<typeof ProjectResponse>;

export const ProjectCreated = z
  .object({
    ...record,
    webhook: z
      .object({ url: z.string(), secret: z.string().meta({ "x-kontor-secret": true }) })
      .nullable()
      .describe("For the forge, this once; null in a replayed answer."),
  })
  .meta({ id: "ProjectCreated" });
export type ProjectCreated = z.output<typeof ProjectCreated>;

export const ProjectListResponse = z
  .object({ items: z.array(ProjectResponse), total: z.int(), skip: z.int(), limit: z.int() })
  .meta({ id: "ProjectListResponse" });

export const NameCheck = z
  .object({
    name: z.string(),
    available: z.boolean(),
    reason: z.enum(["taken", "reserved", "invalid"]).nullable(),
  })
  .meta({ id: "NameCheck" });

/** Fields of the record that a PATCH accepts and ignores. */
export const readOnlyFields = Object.keys(record).filter((field) => !(field in ProjectUpdate.shape));

/** The only way from a row to JSON; the environments are the project's, production first. */
export function toProject(
  app: Pick<App, "config">,
  actor: Actor,
  row: ProjectRow,
  environments: readonly [EnvironmentView, ...EnvironmentView[]],
): ProjectResponse {
  const [production] = environments;
  const newest = environments
    .flatMap(({ id, last }) => (last ? [{ id, last }] : []))
    .toSorted((a, b) => b.last.number - a.last.number)[0];
  return {
    id: row.id,
    name: row.name,
    slug: row.name,
    url: urlOf(app, production.host_label),
    repo_url: row.repo_url,
    git_url: row.repo_url === null ? `${reachedAt(app)}/git/${row.name}.git` : null,
    branch: row.branch,
    root_directory: row.root_directory,
    framework: row.framework,
    install_command: row.install_command,
    build_command: row.build_command,
    start_command: row.start_command,
    output_directory: row.output_directory,
    port: row.port,
    health_check_path: row.health_check_path,
    auto_deploy: row.auto_deploy,
    isolation: row.isolation,
    region: row.region,
    status: statusOf(production),
    production_environment_id: production.id,
    last_deployment: newest ? toLastDeployment(newest.id, newest.last) : null,
    custom_domain: toCustomDomain(app, row),
    workspace: workspaceName(actor, row.workspace_id),
    group_id: row.group_id,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

export function toCustomDomain(
  app: Pick<App, "config">,
  row: Pick<ProjectRow, "name" | "custom_domain" | "domain_status" | "domain_checked_at" | "domain_error">,
): z.output<typeof CustomDomain> | null {
  if (row.custom_domain === null || row.domain_status === null) return null;
  return {
    hostname: row.custom_domain,
    status: row.domain_status,
    cname_target: `${row.name}.${hostname(app.config.appsDomain)}`,
    checked_at: row.domain_checked_at?.toISOString() ?? null,
    error: row.domain_error,
  };
}

/** What a forge calls at a push. */
export function hookUrl(app: Pick<App, "config">, hookId: string): string {
  return `${reachedAt(app)}/api/v1/hooks/git/${hookId}`;
}

export function isHttps(repositoryUrl: string | null | undefined): boolean {
  return typeof repositoryUrl === "string" && /^https:/i.test(repositoryUrl);
}

function reachedAt({ config }: Pick<App, "config">): string {
  return config.publicUrl ?? baseUrl(config);
}
