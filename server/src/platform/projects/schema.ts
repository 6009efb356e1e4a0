/** Request and response schemas of projects. */
import { posix } from "node:path";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { workspaceName } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { maxCommandLength } from "#builds/detection/dockerfile.ts";
import { frameworks, pythonFrameworks } from "#builds/detection/frameworks.ts";
import { plainPath } from "#builds/detection/inspection.ts";
import { parseRegistry } from "#builds/registry/reference.ts";
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
import { pageFields } from "../input/schema.ts";
import { isReserved, slugPattern } from "./names.ts";
import { parseRepositoryUrl } from "./repository-url.ts";
import type { ProjectRow } from "./store.ts";

export const Slug = z
  .string()
  .regex(slugPattern, {
    error:
      "must have 3 to 40 characters: a letter, then letters a-z, digits and single hyphens, without a hyphen at the end",
  })
  .refine((name) => !isReserved(name), { error: "is a reserved name" })
  .describe("Name: the first label of the host name. Unique over projects and functions. 3 to 40 characters.")
  .meta({ example: "shop" });

const RepositoryUrl = z
  .string()
  .min(1)
  .max(2048)
  .superRefine((text, context) => {
    const parsed = parseRepositoryUrl(text);
    if ("problem" in parsed) context.addIssue({ code: "custom", message: parsed.problem });
  })
  .meta({ example: "https://git.example.com/team/shop.git" });

/** A single line of text, which fits into a Dockerfile or a response. */
const line = (max: number) =>
  z
    .string()
    .min(1)
    .max(max)
    .regex(/^\P{Cc}*$/u, { error: "must be one line without control characters" });

const command = line(maxCommandLength);

const Directory = z
  .string()
  .max(200)
  .refine((path) => plainPath(path) !== undefined, {
    error: "must be a path in the repository, with letters, digits and . _ - @ + only",
  })
  .transform((path) => posix.join("/", plainPath(path)!));

const OutputDirectory = z
  .string()
  .min(1)
  .max(200)
  .refine((path) => plainPath(path) !== undefined, {
    error: "must be a path below the root directory, with letters, digits and . _ - @ + only",
  });

/** Frameworks that a project can set. */
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
    error: "must be the path of a URL, such as /healthz",
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

/** Descriptions of settings, which requests and responses share. */
const texts = {
  repo_url:
    "Address of the repository: `https://…`, `ssh://…` or `user@host:path`, without credentials. Null: hosted here, at `git_url`.",
  framework: "Framework of the app, such as `nextjs`. Null: detected at each deployment.",
  install_command:
    "Shell command (`sh`) that installs the dependencies, such as `npm ci`. Null: detected at each deployment.",
  build_command:
    "Shell command (`sh`) that builds the app, such as `npm run build`. Null: detected at each deployment.",
  start_command:
    "Shell command (`sh`) that starts the app, such as `node server.js`. Null: detected at each deployment.",
  output_directory:
    "Directory below `root_directory` that is served as a static site, such as `dist`. Null: detected at each deployment.",
  port: "TCP port that the app listens on, passed to it as `PORT`. Null: detected at each deployment.",
  branch: "Branch that the production environment deploys, such as `main`.",
  root_directory: "Directory of the app in the repository, such as `/apps/web`; `/` is the whole repository.",
  health_check_path:
    "Path that must respond with a status below 500 before a deployment goes live, such as `/healthz`.",
  auto_deploy: "True if a push deploys the environments that follow the pushed branch.",
  region: "Code of the project's region, such as `eu-1`.",
  isolation:
    "Isolation of the app's machine: `native` runs on the host's kernel, `gvisor` on a kernel of its own.",
} as const;

/** Settings of builds and starts. A setting that is null is detected at each deployment. */
const settings = {
  repo_url: RepositoryUrl.nullish().describe(texts.repo_url),
  framework: Framework.nullish().describe(texts.framework),
  install_command: command.nullish().describe(texts.install_command),
  build_command: command.nullish().describe(texts.build_command),
  start_command: command.nullish().describe(texts.start_command),
  output_directory: OutputDirectory.nullish().describe(texts.output_directory),
  port: z.int().min(1).max(65_535).nullish().describe(texts.port),
  git_token: line(4096)
    .nullish()
    .describe("Token for a private https repository. Stored encrypted; no response contains it. Null: none."),
  registry_credential: z
    .strictObject({
      registry: z
        .string()
        .max(260)
        .transform((text, context) => {
          const registry = parseRegistry(text);
          if (registry !== undefined) return registry;
          context.issues.push({
            code: "custom",
            input: text,
            message: "must be the host of a registry such as ghcr.io, with its port if it has one",
          });
          return z.NEVER;
        })
        .describe("Host of the registry, such as `ghcr.io`; `docker.io` for Docker Hub."),
      username: line(256)
        .refine((name) => !name.includes(":"), { error: "must not contain a colon" })
        .describe("User name at the registry."),
      password: line(16_384).describe("Password or access token of the user, with the right to pull."),
    })
    .nullish()
    .describe(
      "Credential for images of a private registry. Stored encrypted; no response contains it. Null: none. Extension.",
    ),
  workspace: z
    .string()
    .max(64)
    .nullish()
    .describe(
      "Workspace of the project: `personal` or a team id. Default at creation: the workspace the token is bound to, else the personal one. Fixed after creation.",
    ),
};

export const ProjectCreate = z
  .strictObject({
    name: Slug,
    ...settings,
    branch: Branch.default("main").describe(`${texts.branch} Default: \`main\`.`),
    root_directory: Directory.prefault("/").describe(`${texts.root_directory} Default: \`/\`.`),
    health_check_path: HealthCheckPath.default("/").describe(`${texts.health_check_path} Default: \`/\`.`),
    env_vars: Variables.default({}).describe(
      "Variables of builds and processes in all environments: at most 200, 64 KiB in all. Default: none.",
    ),
    auto_deploy: z.boolean().default(true).describe(`${texts.auto_deploy} Default: true.`),
    region: z
      .string()
      .max(64)
      .nullish()
      .describe(`${texts.region} Null: the first region of this installation.`),
    custom_domain: Hostname.nullish().describe(
      "Host name of your own for the production environment, such as `www.example.com`. Null: none.",
    ),
    isolation: z
      .enum(["native", "gvisor"])
      .default("native")
      .describe(`${texts.isolation} Default: \`native\`.`),
  })
  .refine(({ git_token, repo_url }) => !git_token || isHttps(repo_url), {
    path: ["git_token"],
    error: "is for an https repository only; an ssh repository uses the project's deploy key",
  })
  .meta({ id: "ProjectCreate" });
export type ProjectCreate = z.output<typeof ProjectCreate>;

/** Domain as responses contain it. An update accepts that form as well. */
const AnsweredDomain = z.looseObject({
  hostname: Hostname.describe("Host name, such as `www.example.com`. Other fields are ignored."),
});

export const ProjectUpdate = z
  .strictObject({
    name: Slug.optional(),
    ...settings,
    branch: Branch.optional().describe(texts.branch),
    root_directory: Directory.optional().describe(texts.root_directory),
    health_check_path: HealthCheckPath.optional().describe(texts.health_check_path),
    env_vars: VariablesChange.optional().describe(
      "Changes to the stored variables. A string sets a variable, null removes it, and `********` or the stored value's hint keeps it. Applies at the next deploy, restart or wake.",
    ),
    auto_deploy: z.boolean().optional().describe(texts.auto_deploy),
    region: z.string().max(64).optional().describe(texts.region),
    custom_domain: z
      .union([Hostname, AnsweredDomain.transform((domain) => domain.hostname)])
      .nullish()
      .describe("Host name of your own, or the object that a response contains. Null removes the domain."),
    isolation: z.enum(["native", "gvisor"]).optional().describe(texts.isolation),
  })
  .meta({ id: "ProjectUpdate" });
export type ProjectUpdate = z.output<typeof ProjectUpdate>;

export const CustomDomain = z
  .object({
    hostname: z.string().describe("Host name in lower case, such as `www.example.com`."),
    status: z
      .enum(["pending", "verified", "failed"])
      .describe(
        "`pending`: DNS does not point here yet. `verified`: the domain is served. `failed`: DNS is wrong; the server checks it again.",
      ),
    cname_target: z.string().describe("Host name that the domain's CNAME record must name."),
    checked_at: z.iso
      .datetime()
      .nullable()
      .describe("Time of the last DNS check (UTC). Null until the first."),
    error: z
      .string()
      .nullable()
      .describe("Problem that the last DNS check found, and the record to set. Null if none."),
  })
  .meta({ id: "CustomDomain" });

const record = {
  id: z.guid().describe("Id (UUID) of the project."),
  name: z
    .string()
    .describe(
      "Name of the project, such as `shop`: the first label of its host. Unique over projects and functions.",
    ),
  slug: z.string().describe("Slug of the project; always equal to `name`."),
  url: z
    .string()
    .describe("HTTPS address of the production environment, such as `https://shop.apps.example.com`."),
  repo_url: z.string().nullable().describe(texts.repo_url),
  git_url: z
    .string()
    .nullable()
    .describe("URL to push to, with an API token as password. Null if the repository is hosted elsewhere."),
  branch: z.string().describe(texts.branch),
  root_directory: z.string().describe(texts.root_directory),
  framework: z.string().nullable().describe(texts.framework),
  install_command: z.string().nullable().describe(texts.install_command),
  build_command: z.string().nullable().describe(texts.build_command),
  start_command: z.string().nullable().describe(texts.start_command),
  output_directory: z.string().nullable().describe(texts.output_directory),
  port: z.int().nullable().describe(texts.port),
  health_check_path: z.string().describe(texts.health_check_path),
  auto_deploy: z.boolean().describe(texts.auto_deploy),
  isolation: z.enum(["native", "gvisor"]).describe(texts.isolation),
  region: z.string().describe(texts.region),
  status: z
    .enum(environmentStatuses)
    .describe(
      "Status of the production environment for visitors. A new deployment does not change `live`; see `last_deployment`.",
    ),
  production_environment_id: z.guid().describe("Id (UUID) of the project's production environment."),
  last_deployment: LastDeployment.nullable().describe(
    "Newest deployment in any environment. Null before the first.",
  ),
  custom_domain: CustomDomain.nullable().describe(
    "Host name of your own for the production environment, and its DNS check. Null: none.",
  ),
  workspace: z.string().describe("Workspace of the project: `personal`, or a team id (UUID)."),
  group_id: z.guid().nullable().describe("Id (UUID) of the project's group. Null: none."),
  created_at: z.iso.datetime().describe("Time of creation (UTC)."),
  updated_at: z.iso.datetime().describe("Time of the last change to the project's settings (UTC)."),
};

export const ProjectResponse = z.object(record).meta({ id: "ProjectResponse" });
export type ProjectResponse = z.output<typeof ProjectResponse>;

export const ProjectCreated = z
  .object({
    ...record,
    webhook: z
      .object({
        url: z.string().describe("Address that the forge calls at each push."),
        secret: z
          .string()
          .meta({ "x-kontor-secret": true })
          .describe("Secret that signs the forge's deliveries: 40 letters and digits."),
      })
      .nullable()
      .describe("Webhook to add at the forge, only in this response. Null in a replayed response."),
  })
  .meta({ id: "ProjectCreated" });
export type ProjectCreated = z.output<typeof ProjectCreated>;

export const ProjectListResponse = z
  .object({ items: z.array(ProjectResponse).describe("Projects of this page, newest first."), ...pageFields })
  .meta({ id: "ProjectListResponse" });

export const NameCheck = z
  .object({
    name: z.string().describe("Checked name, as in the request."),
    available: z.boolean().describe("True if a new project or function can have the name."),
    reason: z
      .enum(["taken", "reserved", "invalid"])
      .nullable()
      .describe("Reason why the name is not available. Null if it is available."),
  })
  .meta({ id: "NameCheck" });

/** Fields of the record that a PATCH accepts and ignores. */
export const readOnlyFields = Object.keys(record).filter((field) => !(field in ProjectUpdate.shape));

/** Returns the response of a project. No other function converts a row to JSON. `environments` has production first. */
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

function toCustomDomain(
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

/** Returns the address of the webhook, which a forge calls after a push. */
export function hookUrl(app: Pick<App, "config">, hookId: string): string {
  return `${reachedAt(app)}/api/v1/hooks/git/${hookId}`;
}

export function isHttps(repositoryUrl: string | null | undefined): boolean {
  return typeof repositoryUrl === "string" && /^https:/i.test(repositoryUrl);
}

function reachedAt({ config }: Pick<App, "config">): string {
  return config.publicUrl ?? baseUrl(config);
}
