/** The wire: what a sandbox looks like in JSON, and what its calls take. */
import { z } from "zod";
import type { App } from "#app.ts";
import { randomText } from "#lib/ids.ts";
import type { SnapshotRow } from "#machines/snapshots.ts";
import { hostBase } from "../ports/hosts.ts";
import { VolumeReference } from "../volumes/schema.ts";
import { sizeNames } from "./sizes.ts";
import { statuses, terminationReasons, transitions } from "./states.ts";
import type { SandboxRow } from "./store.ts";

export const SandboxId = z
  .string()
  .regex(/^sbx_[a-z0-9]{1,40}$/)
  .meta({ example: "sbx_5f2k8v1c9q0m3x7b4n6d" });
export const SandboxParams = z.strictObject({ id: z.string().max(64) });

const timestamp = z.iso.datetime();
/** PostgreSQL refuses some years and offsets that ISO 8601 allows. */
const moment = z.iso
  .datetime({ offset: true })
  .refine((text) => Date.parse(text) >= 0 && Date.parse(text) < Date.UTC(10_000), {
    error: "must be a time from 1970 to 9999",
  });

/** Converts a time to the database's format. */
export const toMoment = (text: string | undefined): string | undefined =>
  text === undefined ? undefined : new Date(text).toISOString();

/** Query parameters to filter and order a list by creation time. */
export const createdQuery = {
  created_after: moment.optional().describe("Include items created at this time or later. Extension."),
  created_before: moment.optional().describe("Include items created before this time. Extension."),
  order: z
    .enum(["newest", "oldest"])
    .default("newest")
    .describe("Order by creation time. A cursor is valid in its own order only. Extension."),
};

const network = z.enum(["off", "restricted", "open"]);
const hostname = z
  .string()
  .max(253)
  .regex(/^(?=.{1,253}$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*$/i, {
    error: "must be a bare hostname such as api.example.com",
  });

/** The documented maximum. The tier's own is checked later, with the code `timeout_too_long`. */
const TimeoutSeconds = z.int().min(10).meta({ maximum: 86_400 });

const AllowDomains = z.array(hostname).max(200);

const Metadata = z
  .record(z.string().min(1).max(64), z.string().max(512))
  .refine((metadata) => Object.keys(metadata).length <= 16, { error: "must have at most 16 keys" });

/** Names as a process can have them; the sum counts names, values and the two bytes between and after. */
export const Env = z
  .record(
    z.string().regex(/^[^=\0]{1,256}$/, { error: "must be a name without = or NUL" }),
    z.string().refine((value) => !value.includes("\0"), { error: "must not contain NUL" }),
  )
  .refine((env) => Object.keys(env).length <= 64, { error: "must have at most 64 names" })
  .refine(
    (env) =>
      Object.entries(env).reduce((sum, [k, v]) => sum + Buffer.byteLength(k) + Buffer.byteLength(v) + 2, 0) <=
      65_536,
    {
      error: "must be at most 64 KiB in all",
    },
  );

export const SandboxCreate = z
  .strictObject({
    template: z
      .string()
      .min(1)
      .max(128)
      .optional()
      .describe(
        "A built-in template (debian-12, python-3.12, python-3.12-bare, node-22, code-interpreter), or a custom one: its id, its name (tag `default`) or `name:tag`.",
      ),
    snapshot: z
      .string()
      .min(1)
      .max(64)
      .optional()
      .describe(
        "In place of a template: id or name of a kept snapshot to begin from. Template, size and region are then its own.",
      ),
    size: z.enum(sizeNames).optional().meta({ default: "small" }),
    network: network.default("restricted"),
    timeout_seconds: TimeoutSeconds.optional().describe(
      "Lifetime in seconds; default 600, capped by the tier.",
    ),
    on_timeout: z.enum(["kill", "pause"]).default("kill"),
    auto_resume: z.boolean().default(false),
    preview_auth: z.boolean().default(false),
    env: Env.default({}),
    metadata: Metadata.default({}),
    region: z.string().max(64).optional(),
    allow_domains: AllowDomains.optional(),
    volume: VolumeReference.optional().describe(
      "A volume's name or id, mounted at /persist; one that is named and not there is made, of 10 GiB.",
    ),
  })
  .refine(({ template, snapshot }) => (template === undefined) !== (snapshot === undefined), {
    path: ["template"],
    error: "must be given, or else snapshot",
  })
  .meta({ id: "SandboxCreate" });
export type SandboxCreate = z.output<typeof SandboxCreate>;

export const SandboxUpdate = z
  .strictObject({
    allow_domains: AllowDomains.nullable()
      .optional()
      .describe(
        "Hosts that a `restricted` sandbox may reach. Replaces the previous list. Null means the default egress allowlist. Ignored for `off` and `open`.",
      ),
  })
  .meta({ id: "SandboxUpdate" });
export type SandboxUpdate = z.output<typeof SandboxUpdate>;

export const SandboxFork = z
  .strictObject({
    count: z.int().min(1).max(20).default(1),
    timeout_seconds: TimeoutSeconds.optional().describe(
      "Lifetime of each clone from now on. Default: the source's, as for all fields below.",
    ),
    on_timeout: z.enum(["kill", "pause"]).optional(),
    auto_resume: z.boolean().optional(),
    preview_auth: z.boolean().optional(),
    env: Env.default({}).describe("On top of the source's; processes that run already keep what they have."),
    metadata: Metadata.optional(),
  })
  .meta({ id: "SandboxFork" });
export type SandboxFork = z.output<typeof SandboxFork>;

export const Sandbox = z
  .object({
    id: z.string(),
    status: z.enum(statuses),
    transition: z.enum(transitions).nullable(),
    termination_reason: z.enum(terminationReasons).nullable(),
    template: z.string().describe("As the create asked for it."),
    template_id: z.string().nullable().describe("Of the custom template that was; null for a built-in one."),
    substituted: z
      .string()
      .nullable()
      .describe(
        "Version inside, if it is not the version in the template's name: `3.13.5` for `python-3.12`. Null otherwise. Extension.",
      ),
    start_command_id: z
      .string()
      .optional()
      .describe("The background command that its template had started, where it has one."),
    size: z.enum(sizeNames),
    network,
    allow_domains: z
      .array(z.string())
      .nullable()
      .describe("Hosts that a `restricted` sandbox may reach. Null means the default egress allowlist."),
    cpu: z.number().describe("vCPUs"),
    memory_mb: z.int(),
    disk_gb: z.int().describe("Size of the sandbox's disk in GiB, without its volume. Extension."),
    region: z.string(),
    volume_id: z
      .string()
      .nullable()
      .describe("What is mounted at /persist; of a terminated sandbox, what was. Null where nothing is."),
    created_at: timestamp,
    expires_at: timestamp.describe("The auto-termination deadline."),
    on_timeout: z.enum(["kill", "pause"]),
    auto_resume: z.boolean(),
    endpoints: z.object({ exec: z.string(), files: z.string(), pause: z.string(), resume: z.string() }),
    metadata: z.record(z.string(), z.string()),
    preview_auth_token: z.string().meta({ "x-kontor-secret": true }).nullable().optional(),
    preview_host_base: z
      .string()
      .nullable()
      .describe("`<port>-` before it is the host of a port. Null where the sandbox cannot expose one."),
    egress_denied: z
      .int()
      .nullable()
      .describe("Connections the network mode refused; null when nothing runs."),
    forked_from: z.string().nullable().describe("The sandbox it is a clone of, which may be gone."),
    snapshot_id: z.string().nullable().describe("The named snapshot it was made from, which may be gone."),
  })
  .meta({ id: "Sandbox" });
export type Sandbox = z.output<typeof Sandbox>;

export const readOnlyFields = Object.keys(Sandbox.shape).filter((field) => !(field in SandboxUpdate.shape));

export const SandboxList = z
  .object({ items: z.array(Sandbox), next_cursor: z.string().nullable() })
  .meta({ id: "SandboxList" });

export const SandboxForks = z.object({ items: z.array(Sandbox) }).meta({ id: "SandboxForks" });

export const KeepAlive = z.strictObject({ timeout_seconds: TimeoutSeconds }).meta({ id: "SandboxTimeout" });

export const PauseRecord = z
  .object({
    sandbox_id: z.string(),
    snapshot_id: z.string(),
    status: z.literal("paused"),
    snapshot_size_mb: z.int(),
    created_at: timestamp,
    paused_expires_at: timestamp.nullable().describe("When the snapshot is reclaimed; null means never."),
  })
  .meta({ id: "PauseRecord" });

export function toPauseRecord(snapshot: SnapshotRow): z.output<typeof PauseRecord> {
  return {
    sandbox_id: snapshot.owner_id,
    snapshot_id: snapshot.id,
    status: "paused",
    snapshot_size_mb: Math.ceil(snapshot.bytes / 1024 ** 2),
    created_at: snapshot.stored_at.toISOString(),
    paused_expires_at: snapshot.expires_at?.toISOString() ?? null,
  };
}

/** The only way from a row to JSON. */
export function toSandbox(app: Pick<App, "config" | "secrets" | "machines">, row: SandboxRow): Sandbox {
  const path = `/v1/sandboxes/${row.id}`;
  return {
    id: row.id,
    status: row.status,
    transition: row.transition,
    termination_reason: row.termination_reason,
    template: row.template,
    template_id: row.template_id,
    substituted: row.substituted,
    ...(row.start_command_id === null ? {} : { start_command_id: row.start_command_id }),
    size: row.size as Sandbox["size"],
    network: row.network,
    allow_domains: row.allow_domains,
    cpu: row.cpu,
    memory_mb: row.memory_mb,
    disk_gb: app.config.machineDiskGb,
    region: row.region,
    volume_id: row.volume_id,
    created_at: row.created_at.toISOString(),
    expires_at: row.expires_at.toISOString(),
    on_timeout: row.on_timeout,
    auto_resume: row.auto_resume,
    endpoints: {
      exec: `${path}/exec`,
      files: `${path}/files`,
      pause: `${path}/pause`,
      resume: `${path}/resume`,
    },
    metadata: row.metadata,
    ...(row.preview_token_sealed ? { preview_auth_token: openPreviewToken(app, row) } : {}),
    preview_host_base: hostBase(app.config, row),
    egress_denied: row.machine_id ? (app.machines.sampler.latest(row.machine_id)?.egressDenied ?? 0) : null,
    forked_from: row.forked_from,
    snapshot_id: row.snapshot_id,
  };
}

const tokenAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/** Sealed to its sandbox, as it is stored. */
export function newPreviewToken(app: Pick<App, "secrets">, id: string): Buffer {
  return app.secrets.seal(randomText(tokenAlphabet, 32), `sandboxes:preview_token:${id}`);
}

export function openPreviewToken(
  app: Pick<App, "secrets">,
  row: Pick<SandboxRow, "id" | "preview_token_sealed">,
): string | null {
  if (row.preview_token_sealed === null) return null;
  return app.secrets.open(row.preview_token_sealed, `sandboxes:preview_token:${row.id}`).toString();
}

export const Limits = z
  .object({
    tier: z.enum(["free", "payg", "enterprise"]),
    sizes: z.array(z.object({ name: z.enum(sizeNames), cpu: z.number(), memory_mb: z.int() })),
    max_timeout_seconds: z.int(),
    max_concurrent_sandboxes: z.int(),
    snapshot_cap: z.int(),
    regions: z.array(z.object({ code: z.string(), name: z.string(), default: z.boolean() })),
    default_egress_allowlist: z.array(z.string()),
    metadata_max_keys: z.int(),
    file_max_bytes: z.int(),
    batch_max_files: z.int(),
    batch_max_bytes: z.int(),
    upload_max_bytes: z.int(),
    webhooks_max: z.int(),
    volumes_max: z.int(),
    can_expose_ports: z.boolean(),
    can_build_templates: z.boolean(),
    paused_retention_days: z.int().nullable(),
    templates: z.array(
      z.object({
        name: z.string(),
        state: z.enum(["absent", "preparing", "ready", "failed"]),
        substituted: z.boolean(),
        contents: z.record(z.string(), z.string()),
      }),
    ),
  })
  .meta({ id: "SandboxLimits" });

export const Metrics = z
  .object({
    sandbox_id: z.string(),
    sandbox_status: z.enum(statuses),
    as_of: timestamp,
    as_of_unix: z.int(),
    sample_interval_seconds: z.int(),
    window_seconds: z.int(),
    cpu: z.object({
      cores: z.number(),
      usage_cores: z.number().nullable(),
      usage_percent: z.number().nullable(),
    }),
    memory: z.object({
      limit_bytes: z.int(),
      usage_bytes: z.int().nullable(),
      usage_percent: z.number().nullable(),
    }),
    disk: z
      .object({
        limit_bytes: z.int(),
        usage_bytes: z.int().nullable(),
        usage_percent: z.number().nullable(),
      })
      .describe(
        "The sandbox's disk in bytes, without its volume. Usage is null if the sandbox does not run. Extension.",
      ),
    lifetime: z.object({ cpu_seconds: z.number(), gb_seconds: z.number() }),
    samples: z.array(z.object({ t: z.int(), cpu_percent: z.number(), mem_bytes: z.int() })),
  })
  .meta({ id: "SandboxMetrics" });
