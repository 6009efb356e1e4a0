/** Request and response schemas of templates. */
import { z } from "zod";
import type { BuildLog } from "#builds/builds.ts";
import { nextCursor, pageQuery } from "../fields.ts";
import type { TemplateRow } from "./store.ts";

const timestamp = z.iso.datetime();
const isText = (text: string): boolean => text.isWellFormed() && !text.includes("\0");
const notText = { error: "must be Unicode text without NUL" };
const command = (most: number) => z.string().min(1).max(most).refine(isText, notText);

/**
 * Names of the documented built-in templates, even if this host lacks them. A custom template must not have such a
 * name.
 */
const builtIn = ["python-3.12", "python-3.12-bare", "node-22", "debian-12", "code-interpreter"];

const Tag = z
  .string()
  .regex(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$/, { error: "must be letters, digits, dots and dashes" });

const TemplateId = z.string().max(64).describe("Id of the template: `tmpl_` and 20 letters and digits.");

export const TemplateParams = z.strictObject({ id: TemplateId });
export const TagParams = z.strictObject({
  id: TemplateId,
  tag: Tag.describe("Tag, such as `default` or `v2`: 1 to 63 letters, digits, dots, dashes and underscores."),
});

export const TemplateCreate = z
  .strictObject({
    name: z
      .string()
      .regex(/^[a-z0-9][a-z0-9_-]{1,62}$/, {
        error: "must be 2 to 63 lower-case letters, digits, - and _, beginning with a letter or digit",
      })
      .refine((name) => !builtIn.includes(name), { error: "is the name of a built-in template" })
      .refine((name) => !name.startsWith("tmpl_"), { error: "must not begin as ids do" })
      .describe(
        "Name of 2 to 63 characters, such as `data-tools`. Several builds may share it; tags distinguish them.",
      ),
    base_template: z
      .string()
      .min(1)
      .max(128)
      .optional()
      .describe(
        "Built-in template such as `debian-12`, or a ready one of your own by id, name or `name:tag` (extension). A name alone means tag `default`. Required unless `dockerfile` or `image` is sent.",
      ),
    recipe: z
      .array(command(65_536))
      .min(1)
      .max(100)
      .optional()
      .describe(
        "Shell commands of the build, run in order by `/bin/sh -c` as root, in /workspace, with HOME=/root. Required with `base_template`.",
      ),
    dockerfile: command(65_536)
      .optional()
      .describe(
        "Text of a Dockerfile to build, instead of `base_template` and `recipe`. There is no build context: COPY works with `--from`, ADD with URLs. ENV, WORKDIR and USER become the defaults of processes. Extension.",
      ),
    image: z
      .string()
      .min(1)
      .max(512)
      .regex(/^[^\s$]+$/, { error: "must be a reference of an image, such as python:3.13-slim" })
      .optional()
      .describe(
        "Image of a registry, such as `python:3.13-slim`, instead of `base_template` and `recipe`. Same as a Dockerfile of one FROM. Extension.",
      ),
    network: z
      .enum(["restricted", "open"])
      .optional()
      .describe(
        "Network mode of the build: `restricted` to the default egress allowlist, or `open`. Default: `restricted`. Builds with `dockerfile` or `image` are always `open`, as builds of apps are.",
      ),
    description: z
      .string()
      .max(1024)
      .refine(isText, notText)
      .optional()
      .describe("Text for people, at most 1024 characters. Default: none."),
    tags: z
      .array(Tag)
      .max(20)
      .default([])
      .describe(
        "Tags to assign when the build is ready, at most 20. A build also gets `default` if its name has no other ready build.",
      ),
    start_command: command(65_536)
      .optional()
      .describe(
        "Shell command that each new sandbox runs in the background at its first boot, in /workspace with its own environment. Default: none.",
      ),
  })
  .superRefine(refuseMixedSources)
  .meta({ id: "TemplateCreate" });
export type TemplateCreate = z.output<typeof TemplateCreate>;

/** A template has one source: a base with a recipe, a Dockerfile, or an image. */
function refuseMixedSources(
  input: { base_template?: unknown; recipe?: unknown; dockerfile?: unknown; image?: unknown },
  context: z.RefinementCtx,
): void {
  const refuse = (field: string, message: string) =>
    context.addIssue({ code: "custom", path: [field], message, input });
  const isGiven = (field: keyof typeof input) => input[field] !== undefined;
  const source = isGiven("dockerfile") ? "dockerfile" : isGiven("image") ? "image" : undefined;
  if (source === undefined) {
    if (!isGiven("base_template")) refuse("base_template", "is required, or dockerfile, or image");
    if (!isGiven("recipe")) refuse("recipe", "is required with base_template");
    return;
  }
  if (source === "dockerfile" && isGiven("image"))
    refuse("image", "cannot be sent with dockerfile; write it as FROM of the Dockerfile");
  if (isGiven("base_template"))
    refuse("base_template", `cannot be sent with ${source}; a base is FROM of a Dockerfile`);
  if (isGiven("recipe"))
    refuse("recipe", `cannot be sent with ${source}; write the steps as RUN instructions of a Dockerfile`);
}

export const Template = z
  .object({
    id: z.string().describe("Id of the template: `tmpl_` and 20 letters and digits."),
    name: z.string().describe("Name of the template. Several builds may share it; tags distinguish them."),
    base_template: z
      .string()
      .describe(
        "Base as the create request named it. For a Dockerfile, the image that its last stage stands on.",
      ),
    base_template_id: z
      .string()
      .nullable()
      .describe(
        "Own template that it was built on, which may be deleted. Null for a built-in base. Extension.",
      ),
    recipe: z
      .array(z.string())
      .describe("Shell commands of the build, in order. Empty for a Dockerfile or an image."),
    dockerfile: z
      .string()
      .nullable()
      .describe("Text of the Dockerfile. Null for a template that was made in another way. Extension."),
    image: z
      .string()
      .nullable()
      .describe("Image of a registry. Null for a template that was made in another way. Extension."),
    cwd: z
      .string()
      .nullable()
      .describe(
        "Default working directory of processes, from WORKDIR of a Dockerfile or an image. Null for /workspace, and until the build is ready. Extension.",
      ),
    user: z
      .string()
      .nullable()
      .describe(
        "Default user of processes, from USER of a Dockerfile or an image. Null for root, and until the build is ready. Extension.",
      ),
    network: z
      .enum(["restricted", "open"])
      .describe("Network mode of the build: `restricted` to the default egress allowlist, or `open`."),
    description: z.string().nullable().describe("Text for people. Null if none was given."),
    status: z
      .enum(["building", "ready", "failed"])
      .describe("State of the build: `building` at first, `ready` or `failed` at its end."),
    error_message: z
      .string()
      .nullable()
      .describe("Reason of a failed build, such as its step and last output. Null unless the build failed."),
    size_mb: z
      .int()
      .nullable()
      .describe("Size of the image in MiB, rounded up. Null until the build is ready."),
    contents: z
      .record(z.string(), z.string())
      .describe('Versions found in the base image, by program. Example: {"python": "3.13.5"}.'),
    substituted: z
      .boolean()
      .describe("True if the base image has another version than its name: see `contents`."),
    tags: z
      .array(z.string())
      .describe('Tags that point to this build, in alphabetical order. Example: ["default", "v2"].'),
    start_command: z
      .string()
      .nullable()
      .describe(
        "Shell command that each new sandbox runs in the background at its first boot. Null for none.",
      ),
    start_command_id: z
      .string()
      .optional()
      .describe(
        "Id of the start command in every sandbox from the template. Only in the response to the create.",
      ),
    created_at: timestamp.describe("Time of creation."),
    built_at: timestamp.nullable().describe("Time at which the build became ready. Null until then."),
  })
  .meta({ id: "Template" });
export type Template = z.output<typeof Template>;

export const TemplateList = z
  .object({
    items: z.array(Template).describe("Custom templates of the page, newest first."),
    next_cursor: nextCursor,
  })
  .meta({ id: "TemplateList" });
export type TemplateList = z.output<typeof TemplateList>;

export const ListQuery = z.strictObject(pageQuery);

export const LogsQuery = z.strictObject({
  after: z
    .int()
    .min(0)
    .default(0)
    .describe("Number of a piece; only later pieces are returned. Default: 0, all pieces."),
  limit: z
    .int()
    .min(1)
    .max(1000)
    .default(1000)
    .describe("Maximum of pieces in the response, 1 to 1000. Default: 1000. Ignored with `follow`."),
  follow: z
    .boolean()
    .default(false)
    .describe("Respond with server-sent events until the build ends. Default: false."),
});

const LogPiece = z.object({
  seq: z.int().describe("Number of the piece, which increases within the build; usable as `after`."),
  step: z
    .int()
    .describe(
      "Number of the recipe step, or of the instruction in its stage of the Dockerfile, from 1. 0 before the first.",
    ),
  at: timestamp.describe("Time of the output."),
  text: z.string().describe("Piece of the step's output."),
});

export const TemplateLogs = z
  .object({
    items: z.array(LogPiece).describe("Pieces of output after `after`, in order."),
    next_after: z.int().describe("Value of `after` for the next request."),
    truncated: z.boolean().describe("True if output beyond the first 4 MiB was discarded."),
  })
  .meta({ id: "TemplateLogs" });
export type TemplateLogs = z.output<typeof TemplateLogs>;

/** A `data:` line of a followed log; the last line has the result of the build. */
export const TemplateLogEvent = z
  .union([
    LogPiece.extend({ kind: z.literal("log").describe("Event with a piece of output.") }),
    z.object({
      kind: z.literal("finished").describe("Last event: the build is over."),
      status: z.enum(["ready", "failed"]).describe("Outcome of the build."),
      error_message: z
        .string()
        .nullable()
        .describe("Reason of a failed build, such as its step and last output. Null if the build succeeded."),
    }),
  ])
  .meta({ id: "TemplateLogEvent" });
export type TemplateLogEvent = z.output<typeof TemplateLogEvent>;

/** The only conversion from a row to JSON. */
export function toTemplate(row: TemplateRow): Template {
  return {
    id: row.id,
    name: row.name,
    base_template: row.base_template,
    base_template_id: row.base_template_id,
    recipe: row.recipe,
    dockerfile: row.dockerfile,
    image: row.image,
    cwd: row.process_defaults?.cwd ?? null,
    user: row.process_defaults?.user ?? null,
    network: row.network,
    description: row.description,
    status: row.status,
    error_message: row.error_message,
    size_mb: row.size_bytes === null ? null : Math.ceil(row.size_bytes / 1024 ** 2),
    contents: row.contents,
    substituted: row.substituted,
    tags: row.tags,
    start_command: row.start_command,
    created_at: row.created_at.toISOString(),
    built_at: row.built_at?.toISOString() ?? null,
  };
}

export function toLogPiece({ seq, step, at, text }: BuildLog["pieces"][number]): z.output<typeof LogPiece> {
  return { seq, step, at: at.toISOString(), text };
}
