/** Request and response schemas of sandboxes. */
import { z } from "zod";
import type { App } from "#app.ts";
import { randomText } from "#lib/ids.ts";
import type { SnapshotRow } from "#machines/snapshots/snapshots.ts";
import { nextCursor, sandboxIdParameter } from "../fields.ts";
import { hostBase } from "../ports/hosts.ts";
import { VolumeReference } from "../volumes/schema.ts";
import { sizeNames } from "./limits/sizes.ts";
import { statuses, terminationReasons, transitions } from "./states.ts";
import type { SandboxRow } from "./store.ts";

export const SandboxParams = z.strictObject({ id: sandboxIdParameter });

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
    .describe(
      "Order by creation time. A cursor is valid only for the order in which it was returned. Extension.",
    ),
};

const network = z
  .enum(["off", "restricted", "open"])
  .describe("Network mode: `off`, `restricted` to an allowlist of hosts, or `open` to the internet.");
const hostname = z
  .string()
  .max(253)
  .regex(/^(?=.{1,253}$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*$/i, {
    error: "must be a bare hostname such as api.example.com",
  });

/** The documented maximum. The tier's own maximum is checked later, with the code `timeout_too_long`. */
const TimeoutSeconds = z.int().min(10).meta({ maximum: 86_400 });

const AllowDomains = z.array(hostname).max(200);

const Metadata = z
  .record(z.string().min(1).max(64), z.string().max(512))
  .refine((metadata) => Object.keys(metadata).length <= 16, { error: "must have at most 16 keys" });

/**
 * Environment with names that a process can have. The sum of the bytes counts names, values and the two separator
 * bytes.
 */
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
        "Built-in template (debian-12, python-3.12, python-3.12-bare, node-22, code-interpreter), or a custom one by id, name or `name:tag`. A name alone means tag `default`.",
      ),
    snapshot: z
      .string()
      .min(1)
      .max(64)
      .optional()
      .describe(
        "Id or name of a snapshot to start from, instead of `template`. The sandbox gets the snapshot's template, size and region.",
      ),
    size: z
      .enum(sizeNames)
      .optional()
      .meta({ default: "small" })
      .describe("Size: `small` (1 vCPU, 1 GiB), `medium` (2 vCPUs, 4 GiB) or `large` (4 vCPUs, 8 GiB)."),
    network: network.default("restricted"),
    timeout_seconds: TimeoutSeconds.optional().describe(
      "Lifetime in seconds, from 10 to the tier's `max_timeout_seconds`. Default: 600.",
    ),
    on_timeout: z
      .enum(["kill", "pause"])
      .default("kill")
      .describe(
        "Action at the end of the lifetime: `kill` terminates the sandbox, `pause` pauses it. Default: `kill`.",
      ),
    auto_resume: z
      .boolean()
      .default(false)
      .describe("Resume the paused sandbox when a call or a request to a port needs it. Default: false."),
    preview_auth: z
      .boolean()
      .default(false)
      .describe(
        "Require `preview_auth_token` in requests to the sandbox's ports. Default: false, the ports are public.",
      ),
    env: Env.default({}).describe(
      'Environment variables of all processes: at most 64, and 64 KiB together. Example: {"MODE": "test"}.',
    ),
    metadata: Metadata.default({}).describe(
      'Labels to filter lists by: at most 16 keys of 64 characters, values of 512. Example: {"customer": "42"}.',
    ),
    region: z
      .string()
      .max(64)
      .optional()
      .describe(
        "Code of a region from `GET /v1/sandboxes/limits`. Default: the volume's region, or the default one.",
      ),
    allow_domains: AllowDomains.optional().describe(
      'Hosts that a `restricted` sandbox may reach instead of the default egress allowlist. Not on tier free. Example: ["api.example.com"].',
    ),
    volume: VolumeReference.optional().describe(
      "Name or id of a volume to mount at /persist. A new name creates a volume of 10 GiB. Default: none.",
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
    count: z.int().min(1).max(20).default(1).describe("Number of clones, 1 to 20. Default: 1."),
    timeout_seconds: TimeoutSeconds.optional().describe(
      "Lifetime of each clone in seconds from now. Default: the source's.",
    ),
    on_timeout: z
      .enum(["kill", "pause"])
      .optional()
      .describe("Action at the end of a clone's lifetime: `kill` or `pause`. Default: the source's."),
    auto_resume: z
      .boolean()
      .optional()
      .describe("Resume a paused clone when a call or a request to a port needs it. Default: the source's."),
    preview_auth: z
      .boolean()
      .optional()
      .describe(
        "Require a token in requests to ports; each clone gets its own. Default: the source's setting.",
      ),
    env: Env.default({}).describe(
      "Environment variables in addition to the source's, for new processes only. Default: none.",
    ),
    metadata: Metadata.optional().describe(
      "Labels of each clone, in place of the source's. Default: the source's.",
    ),
  })
  .meta({ id: "SandboxFork" });
export type SandboxFork = z.output<typeof SandboxFork>;

export const Sandbox = z
  .object({
    id: z.string().describe("Id of the sandbox: `sbx_` and 20 letters and digits."),
    status: z.enum(statuses).describe("Status: `running`, `paused`, or `terminated`, which is final."),
    transition: z
      .enum(transitions)
      .nullable()
      .describe("Change of status under way, such as `pausing`. Null if there is none."),
    termination_reason: z
      .enum(terminationReasons)
      .nullable()
      .describe("Reason of the end, such as `timeout`. Null until the sandbox is terminated."),
    template: z
      .string()
      .describe(
        "Template as named in the create request, or the source's for a clone or a sandbox from a snapshot.",
      ),
    template_id: z.string().nullable().describe("Id of the custom template. Null for a built-in one."),
    substituted: z
      .string()
      .nullable()
      .describe(
        "Version inside, if it is not the version in the template's name: `3.13.5` for `python-3.12`. Null otherwise. Extension.",
      ),
    start_command_id: z
      .string()
      .optional()
      .describe("Id of the background command that the template started. Absent if the template has none."),
    size: z
      .enum(sizeNames)
      .describe("Size: `small` (1 vCPU, 1 GiB), `medium` (2 vCPUs, 4 GiB) or `large` (4 vCPUs, 8 GiB)."),
    network,
    allow_domains: z
      .array(z.string())
      .nullable()
      .describe("Hosts that a `restricted` sandbox may reach. Null means the default egress allowlist."),
    cpu: z.number().describe("Number of vCPUs."),
    memory_mb: z.int().describe("Memory in MiB: 1024, 4096 or 8192."),
    disk_gb: z.int().describe("Size of the sandbox's disk in GiB, without its volume. Extension."),
    region: z.string().describe("Code of the region, such as `eu-1`."),
    volume_id: z
      .string()
      .nullable()
      .describe(
        "Id of the volume mounted at /persist, kept after the sandbox terminates. Null without a volume.",
      ),
    created_at: timestamp.describe("Time of creation."),
    expires_at: timestamp.describe("Deadline at which the lifetime ends and `on_timeout` applies."),
    on_timeout: z
      .enum(["kill", "pause"])
      .describe("Action at `expires_at`: `kill` terminates the sandbox, `pause` pauses it."),
    auto_resume: z.boolean().describe("True if a call or a request to a port resumes the paused sandbox."),
    endpoints: z
      .object({
        exec: z.string().describe("Path of the operation that runs a command."),
        files: z.string().describe("Path of the operations that write, read and delete files."),
        pause: z.string().describe("Path of the operation that pauses the sandbox."),
        resume: z.string().describe("Path of the operation that resumes the sandbox."),
      })
      .describe(
        "Paths of frequent operations, without the server's address. Example: `/v1/sandboxes/sbx_5f2k8v1c9q0m3x7b4n6d/exec`.",
      ),
    metadata: z.record(z.string(), z.string()).describe("Labels given at creation. Empty if there are none."),
    preview_auth_token: z
      .string()
      .meta({ "x-kontor-secret": true })
      .nullable()
      .optional()
      .describe(
        "Token for requests to ports, sent as header `X-Service-Preview-Token`. Absent without `preview_auth`, null in a repeated response.",
      ),
    preview_host_base: z
      .string()
      .nullable()
      .describe("Host name of a port without its prefix `<port>-`. Null if the sandbox cannot expose ports."),
    egress_denied: z
      .int()
      .nullable()
      .describe("Number of connections that the network mode denied. Null unless the sandbox runs."),
    forked_from: z
      .string()
      .nullable()
      .describe(
        "Id of the sandbox that this one is a clone of, which may no longer exist. Null if there is none.",
      ),
    snapshot_id: z
      .string()
      .nullable()
      .describe(
        "Id of the named snapshot that the sandbox was created from, which may no longer exist. Null if there is none.",
      ),
  })
  .meta({ id: "Sandbox" });
export type Sandbox = z.output<typeof Sandbox>;

export const readOnlyFields = Object.keys(Sandbox.shape).filter((field) => !(field in SandboxUpdate.shape));

export const SandboxList = z
  .object({
    items: z.array(Sandbox).describe("Sandboxes of the page, newest first by default."),
    next_cursor: nextCursor,
  })
  .meta({ id: "SandboxList" });

export const SandboxForks = z
  .object({ items: z.array(Sandbox).describe("The clones, `count` of them.") })
  .meta({ id: "SandboxForks" });

export const KeepAlive = z
  .strictObject({
    timeout_seconds: TimeoutSeconds.describe(
      "New lifetime in seconds from now: at least 10, at most the tier's `max_timeout_seconds`.",
    ),
  })
  .meta({ id: "SandboxTimeout" });

export const PauseRecord = z
  .object({
    sandbox_id: z.string().describe("Id of the paused sandbox."),
    snapshot_id: z
      .string()
      .describe("Id of the snapshot that the resume restores: `snap_` and 20 letters and digits."),
    status: z.literal("paused").describe("Status of the sandbox."),
    snapshot_size_mb: z.int().describe("Size of the snapshot on disk in MiB, rounded up."),
    created_at: timestamp.describe("Time at which the snapshot was stored."),
    paused_expires_at: timestamp
      .nullable()
      .describe("Time at which the snapshot is deleted. Null means never."),
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

/** The only conversion from a row to JSON. */
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

/** Returns a new preview token, encrypted for its sandbox. */
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
    tier: z.enum(["free", "payg", "enterprise"]).describe("Sandbox tier of the workspace."),
    sizes: z
      .array(
        z.object({
          name: z.enum(sizeNames).describe("Name of the size, for `size` of a create."),
          cpu: z.number().describe("Number of vCPUs."),
          memory_mb: z.int().describe("Memory in MiB."),
        }),
      )
      .describe("Sizes that the tier allows, smallest first."),
    max_timeout_seconds: z
      .int()
      .describe("Maximum lifetime in seconds: 1800 on tier free, 86400 on the others."),
    max_concurrent_sandboxes: z.int().describe("Maximum of running and paused sandboxes in the workspace."),
    snapshot_cap: z
      .int()
      .describe("Maximum of paused sandboxes; named snapshots have the same maximum of their own."),
    regions: z
      .array(
        z.object({
          code: z.string().describe("Code for `region` of a create, such as `eu-1`."),
          name: z.string().describe("Name of the region for people."),
          default: z.boolean().describe("True for the default region, used by a create without `region`."),
        }),
      )
      .describe("Regions of this installation, the default one first."),
    default_egress_allowlist: z
      .array(z.string())
      .describe(
        'Hosts that a `restricted` sandbox may reach if it has no `allow_domains`. Example: ["pypi.org"].',
      ),
    metadata_max_keys: z.int().describe("Maximum of keys in a sandbox's `metadata`."),
    file_max_bytes: z.int().describe("Maximum size of a file in one call, in bytes: 16 MiB."),
    batch_max_files: z.int().describe("Maximum of files in one batch."),
    batch_max_bytes: z
      .int()
      .describe("Maximum size of all contents of a batch after decoding, in bytes: 48 MiB."),
    upload_max_bytes: z.int().describe("Maximum size of an upload to a pre-signed URL, in bytes: 512 MiB."),
    webhooks_max: z.int().describe("Maximum of webhooks in the workspace."),
    volumes_max: z.int().describe("Maximum of volumes in the workspace."),
    can_expose_ports: z.boolean().describe("True if the tier allows public URLs for ports."),
    can_build_templates: z.boolean().describe("True if the tier allows custom templates."),
    paused_retention_days: z
      .int()
      .nullable()
      .describe("Days that a paused sandbox or an unused named snapshot is kept. Null means forever."),
    templates: z
      .array(
        z.object({
          name: z.string().describe("Name for `template` of a create, such as `python-3.12`."),
          state: z
            .enum(["absent", "preparing", "ready", "failed"])
            .describe(
              "State of the image on this host. The first create that needs an `absent` or `failed` image prepares it.",
            ),
          substituted: z
            .boolean()
            .describe(
              "True if the image has another version than its name: see `contents`. False until it is ready.",
            ),
          contents: z
            .record(z.string(), z.string())
            .describe(
              'Versions found in the image, by program. Empty until it is ready. Example: {"python": "3.13.5"}.',
            ),
        }),
      )
      .describe("Built-in templates of this installation."),
  })
  .meta({ id: "SandboxLimits" });

export const Metrics = z
  .object({
    sandbox_id: z.string().describe("Id of the sandbox."),
    sandbox_status: z
      .enum(statuses)
      .describe("Status of the sandbox. Unless `running`, usage is null and `samples` is empty."),
    as_of: timestamp.describe("Time of the response."),
    as_of_unix: z.int().describe("Time of the response in Unix seconds."),
    sample_interval_seconds: z.int().describe("Seconds between two samples: 1."),
    window_seconds: z.int().describe("Seconds that a sample is kept: 60."),
    cpu: z
      .object({
        cores: z.number().describe("Number of vCPUs of the sandbox."),
        usage_cores: z
          .number()
          .nullable()
          .describe("vCPUs in use in the latest sample, such as 0.25. Null if there is no sample."),
        usage_percent: z
          .number()
          .nullable()
          .describe("Usage in percent of all vCPUs, 0 to 100. Null if there is no sample."),
      })
      .describe("CPU of the sandbox, and its usage in the latest sample."),
    memory: z
      .object({
        limit_bytes: z.int().describe("Memory of the sandbox in bytes."),
        usage_bytes: z.int().nullable().describe("Memory in use in bytes. Null if there is no sample."),
        usage_percent: z
          .number()
          .nullable()
          .describe("Memory in use in percent of the limit. Null if there is no sample."),
      })
      .describe("Memory of the sandbox, and its usage in the latest sample."),
    disk: z
      .object({
        limit_bytes: z.int().describe("Size of the disk in bytes."),
        usage_bytes: z
          .int()
          .nullable()
          .describe("Disk space in use in bytes. Null if the sandbox does not run."),
        usage_percent: z
          .number()
          .nullable()
          .describe("Disk space in use in percent of the limit. Null if the sandbox does not run."),
      })
      .describe(
        "The sandbox's disk in bytes, without its volume. Usage is null if the sandbox does not run. Extension.",
      ),
    lifetime: z
      .object({
        cpu_seconds: z.number().describe("CPU time used, in seconds."),
        gb_seconds: z
          .number()
          .describe("Memory of the sandbox in GiB, multiplied by its running time in seconds."),
      })
      .describe("Totals since creation, without the time paused."),
    samples: z
      .array(
        z.object({
          t: z.int().describe("Time of the sample in Unix seconds."),
          cpu_percent: z.number().describe("CPU usage in percent of all vCPUs, 0 to 100."),
          mem_bytes: z.int().describe("Memory in use in bytes."),
        }),
      )
      .describe("Samples of the last minute, oldest first; with `since`, only newer ones."),
  })
  .meta({ id: "SandboxMetrics" });
