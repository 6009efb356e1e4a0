/** The wire of add-ons. */
import { z } from "zod";
import type { App } from "#app.ts";
import { engines } from "./engines.ts";
import type { AddonView } from "./find.ts";
import { evictionPolicies } from "./redis.ts";
import { publicConnectionUrl } from "./public.ts";
import { progressSchema } from "../progress.ts";
import { type AddonSize, sizeNames } from "./sizes.ts";
import { addonSteps } from "./tables.ts";
import { connectionUrl, privateHost } from "./urls.ts";

const kinds = ["postgres", "redis"] as const;
const maxOptionsBytes = 16 * 1024;

export const AddonParams = z.object({ project_id: z.guid(), addon_id: z.guid() });

export const AddonName = z
  .string()
  .regex(/^[a-z](?:[a-z0-9]|-(?!-|$)){0,30}$/, {
    error: "must be of a-z, 0-9 and single hyphens between them, at most 31, and begin with a letter",
  })
  .describe("Part of its private name, `{name}.{project}.internal`.")
  .meta({ example: "orders" });

/** What is not named here is kept under `options`. */
const Options = z.record(z.string().max(100), z.unknown()).refine(
  (options) => {
    const text = JSON.stringify(options);
    return Buffer.byteLength(text) <= maxOptionsBytes && !text.includes("\\u0000");
  },
  { error: "must be at most 16 KiB in all, without NUL" },
);

const known = z.object({
  kind: z.enum(kinds),
  name: AddonName.nullish(),
  version: z.string().max(20).nullish().describe("PostgreSQL 15 and Redis 7 are what there is."),
  size: z.enum(sizeNames).nullish().describe("The largest of the plan where absent."),
  environment_id: z
    .guid()
    .nullish()
    .describe("The environment whose processes get its address; all of the project's where absent."),
  public: z.boolean().default(false).describe("Reachable from outside by a port and its password."),
  maxmemory_policy: z
    .enum(evictionPolicies)
    .optional()
    .describe("Redis: what becomes of a write that finds the memory used; `noeviction` where absent."),
});
const named = new Set(Object.keys(known.shape).filter((key) => key !== "maxmemory_policy"));

export const AddonCreate = known
  .catchall(z.unknown())
  .transform((body, context) => {
    const rest = Object.fromEntries(Object.entries(body).filter(([key]) => !named.has(key)));
    const parsed = Options.safeParse(rest);
    if (!parsed.success) {
      context.addIssue({ code: "custom", path: ["options"], message: parsed.error.issues[0]!.message });
      return z.NEVER;
    }
    const { kind, name, version, size, environment_id, public: isPublic } = body;
    return {
      kind,
      name: name ?? undefined,
      version: version ?? undefined,
      size: size ?? undefined,
      environmentId: environment_id ?? null,
      isPublic,
      options: parsed.data,
    };
  })
  .meta({ id: "AddonCreate" });
export type AddonCreate = z.output<typeof AddonCreate>;

export const AddonUpdate = z.strictObject({ public: z.boolean().optional() }).meta({ id: "AddonUpdate" });
export type AddonUpdate = z.output<typeof AddonUpdate>;

export const Addon = z
  .object({
    id: z.guid(),
    project_id: z.guid(),
    environment_id: z.guid().nullable(),
    kind: z.enum(kinds),
    version: z.string(),
    name: z.string(),
    status: z
      .enum(["provisioning", "running", "stopped", "failed"])
      .describe("`failed` is begun again by itself; `error` says why it is not running."),
    error: z.string().nullable(),
    progress: progressSchema("AddonProgress", addonSteps)
      .nullable()
      .describe("Progress of a start. Null if no start is under way. Extension."),
    host: z.string().describe("Its name in the private network of the workspace's apps and functions."),
    port: z.int(),
    database: z.string().nullable(),
    username: z.string(),
    size: z.enum(sizeNames),
    public: z.boolean(),
    auto_backup: z.boolean(),
    options: z.record(z.string(), z.unknown()).describe("What its creation said beside."),
    created_at: z.iso.datetime(),
    updated_at: z.iso.datetime(),
  })
  .meta({ id: "Addon" });
export type Addon = z.output<typeof Addon>;

export const AddonWithUrls = Addon.extend({
  connection_url: z
    .string()
    .meta({ "x-kontor-secret": true })
    .describe("URL in the private network; holds the password."),
  public_connection_url: z
    .string()
    .meta({ "x-kontor-secret": true })
    .nullable()
    .describe("URL from outside, if `public`; holds the password."),
}).meta({ id: "AddonWithUrls" });
export type AddonWithUrls = z.output<typeof AddonWithUrls>;

/** Fields of the record that a PATCH accepts and ignores. */
export const readOnlyFields = Object.keys(AddonWithUrls.shape).filter(
  (field) => !(field in AddonUpdate.shape),
);

export function toAddon(row: AddonView): Addon {
  return {
    id: row.id,
    project_id: row.project_id,
    environment_id: row.environment_id,
    kind: row.kind,
    version: row.version,
    name: row.name,
    status: row.status,
    error: row.error,
    progress: row.progress,
    host: privateHost(row),
    port: engines[row.kind].port,
    database: row.database,
    username: row.username,
    size: row.size as AddonSize,
    public: row.public,
    auto_backup: row.auto_backup,
    options: row.options as Addon["options"],
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

export function toAddonWithUrls(app: Pick<App, "secrets" | "config">, row: AddonView): AddonWithUrls {
  return {
    ...toAddon(row),
    connection_url: connectionUrl(app, row),
    public_connection_url: publicConnectionUrl(app, row),
  };
}
