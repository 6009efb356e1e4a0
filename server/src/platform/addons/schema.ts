/** Wire schemas of add-ons. */
import { z } from "zod";
import type { App } from "#app.ts";
import { engines } from "./engines/engines.ts";
import type { AddonView } from "./find.ts";
import { evictionPolicies } from "./engines/redis.ts";
import { ProjectId } from "../input/schema.ts";
import { publicConnectionUrl } from "./access/public-ports.ts";
import { progressSchema } from "../progress.ts";
import { type AddonSize, sizeNames } from "./sizes.ts";
import { addonSteps } from "./tables.ts";
import { connectionUrl, privateHost } from "./access/urls.ts";

const kinds = ["postgres", "redis"] as const;
const maxOptionsBytes = 16 * 1024;

const addon_id = z.guid().describe("Id (UUID) of the add-on.");
export const ProjectParams = z.object({ project_id: ProjectId });
export const AddonParams = z.object({ project_id: ProjectId, addon_id });

export const AddonName = z
  .string()
  .regex(/^[a-z](?:[a-z0-9]|-(?!-|$)){0,30}$/, {
    error:
      "must consist of a-z, 0-9 and single hyphens between them, begin with a letter, and have at most 31 characters",
  })
  .describe(
    "Name of the add-on: the first label of its private host `{name}.{project}.internal`. At most 31 characters.",
  )
  .meta({ example: "orders" });

/** Unknown fields are stored under `options`. */
const Options = z.record(z.string().max(100), z.unknown()).refine(
  (options) => {
    const text = JSON.stringify(options);
    return Buffer.byteLength(text) <= maxOptionsBytes && !text.includes("\\u0000");
  },
  { error: "must be at most 16 KiB in all, without NUL" },
);

const known = z.object({
  kind: z.enum(kinds).describe("Database engine of the add-on."),
  name: AddonName.nullish().describe(
    "Name, unique in the project; part of the private host `{name}.{project}.internal`. Default: the kind, such as `postgres`, then `postgres-2`.",
  ),
  version: z
    .string()
    .max(20)
    .nullish()
    .describe("Major version: `15` for PostgreSQL, `7` for Redis. Default: that version."),
  size: z
    .enum(sizeNames)
    .nullish()
    .describe("Size of the add-on, within the plan. Default: the largest that the plan allows."),
  environment_id: z
    .guid()
    .nullish()
    .describe(
      "Id (UUID) of the environment whose processes get the connection URL. Default: all environments of the project.",
    ),
  public: z
    .boolean()
    .default(false)
    .describe("True opens a public port, which is protected by the password. Default: false."),
  maxmemory_policy: z
    .enum(evictionPolicies)
    .optional()
    .describe(
      "Redis only: eviction policy when the memory is full. Default: `noeviction`, which refuses writes.",
    ),
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

export const AddonUpdate = z
  .strictObject({
    public: z
      .boolean()
      .optional()
      .describe("True opens a public port; false closes it and ends its connections. Default: no change."),
  })
  .meta({ id: "AddonUpdate" });
export type AddonUpdate = z.output<typeof AddonUpdate>;

export const Addon = z
  .object({
    id: z.guid().describe("Id (UUID) of the add-on."),
    project_id: z.guid().describe("Id (UUID) of the project that the add-on belongs to."),
    environment_id: z
      .guid()
      .nullable()
      .describe(
        "Environment (UUID) whose processes get the connection URL. Null: all environments of the project.",
      ),
    kind: z.enum(kinds).describe("Database engine of the add-on."),
    version: z.string().describe("Major version of the engine: `15` for PostgreSQL, `7` for Redis."),
    name: z.string().describe("Name, unique in the project; the first label of `host`."),
    status: z
      .enum(["provisioning", "running", "stopped", "failed"])
      .describe(
        "Status of the add-on. The server restarts a `failed` one by itself; `error` contains the reason.",
      ),
    error: z
      .string()
      .nullable()
      .describe(
        "Current problem in one sentence, such as a failed start, or a full disk that blocks writes. Null if none.",
      ),
    progress: progressSchema("AddonProgress", addonSteps)
      .nullable()
      .describe("Progress of the current start. Null if the add-on is not starting. Extension."),
    host: z
      .string()
      .describe(
        "Host name in the private network of the workspace's apps and functions, such as `orders.shop.internal`.",
      ),
    port: z.int().describe("TCP port on `host`: 5432 for PostgreSQL, 6379 for Redis."),
    database: z.string().nullable().describe("Name of the database, such as `kontor`. Null for Redis."),
    username: z.string().describe("Database user of the connection URLs, such as `kontor`."),
    size: z
      .enum(sizeNames)
      .describe(
        "CPU cores, memory, disk. `small`: 0.5, 256 MiB, 1 GiB; `medium`: 1, 512 MiB, 5 GiB; `large`: 2, 1 GiB, 10 GiB.",
      ),
    public: z.boolean().describe("True if the add-on has a public port, in addition to the private network."),
    auto_backup: z.boolean().describe("True if the server makes a backup every day."),
    options: z
      .record(z.string(), z.unknown())
      .describe("Additional fields of the create request, such as `maxmemory_policy`. At most 16 KiB."),
    created_at: z.iso.datetime().describe("Time of creation."),
    updated_at: z.iso.datetime().describe("Time of the last change of `status`, `error` or `public`."),
  })
  .meta({ id: "Addon" });
export type Addon = z.output<typeof Addon>;

export const AddonWithUrls = Addon.extend({
  connection_url: z
    .string()
    .meta({ "x-kontor-secret": true })
    .describe("Connection URL in the private network, with the password."),
  public_connection_url: z
    .string()
    .meta({ "x-kontor-secret": true })
    .nullable()
    .describe("Connection URL from outside, with the password. Null unless `public` is true."),
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
