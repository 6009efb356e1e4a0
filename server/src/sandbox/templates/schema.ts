/** The wire of templates. */
import { z } from "zod";
import type { BuildLog } from "#builds/builds.ts";
import type { TemplateRow } from "./store.ts";

const timestamp = z.iso.datetime();
const isText = (text: string): boolean => text.isWellFormed() && !text.includes("\0");
const notText = { error: "must be Unicode text without NUL" };
const command = (most: number) => z.string().min(1).max(most).refine(isText, notText);

/** Names of the documents' built-in templates, made here or not: a custom one could not be told from them. */
const builtIn = ["python-3.12", "python-3.12-bare", "node-22", "debian-12", "code-interpreter"];

const Tag = z
  .string()
  .regex(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$/, { error: "must be letters, digits, dots and dashes" });

export const TemplateParams = z.strictObject({ id: z.string().max(64) });
export const TagParams = z.strictObject({ id: z.string().max(64), tag: Tag });

export const TemplateCreate = z
  .strictObject({
    name: z
      .string()
      .regex(/^[a-z0-9][a-z0-9_-]{1,62}$/, {
        error: "must be 2 to 63 lower-case letters, digits, - and _, beginning with a letter or digit",
      })
      .refine((name) => !builtIn.includes(name), { error: "is the name of a built-in template" })
      .refine((name) => !name.startsWith("tmpl_"), { error: "must not begin as ids do" }),
    base_template: z
      .string()
      .min(1)
      .max(128)
      .describe(
        "A built-in template (debian-12, node-22, …), or a ready one of your own: its id, its name (tag `default`) or `name:tag` (extension).",
      ),
    recipe: z
      .array(command(65_536))
      .min(1)
      .max(100)
      .describe("Run in order by `/bin/sh -c`, as root, with HOME=/root, in /workspace."),
    network: z.enum(["restricted", "open"]).default("restricted").describe("What the steps may reach."),
    description: z.string().max(1024).refine(isText, notText).optional(),
    tags: z.array(Tag).max(20).default([]).describe("Assigned when the build is ready."),
    start_command: command(65_536)
      .optional()
      .describe(
        "Run once, in the background, on the first boot of every sandbox from it (in /workspace, with the sandbox's env).",
      ),
  })
  .meta({ id: "TemplateCreate" });
export type TemplateCreate = z.output<typeof TemplateCreate>;

export const Template = z
  .object({
    id: z.string(),
    name: z.string(),
    base_template: z.string().describe("Base as the create request named it."),
    base_template_id: z
      .string()
      .nullable()
      .describe(
        "Own template that it was built on, which may be deleted. Null for a built-in base. Extension.",
      ),
    recipe: z.array(z.string()),
    network: z.enum(["restricted", "open"]),
    description: z.string().nullable(),
    status: z.enum(["building", "ready", "failed"]),
    error_message: z.string().nullable().describe("Which step failed, how, and what it said last."),
    size_mb: z.int().nullable().describe("Null until built."),
    contents: z.record(z.string(), z.string()).describe("Versions found in the base it was built on."),
    substituted: z.boolean().describe("The base is not what its name says, see `contents`."),
    tags: z.array(z.string()),
    start_command: z.string().nullable(),
    start_command_id: z
      .string()
      .optional()
      .describe("In the create's answer: the id of the start command in every sandbox made from it."),
    created_at: timestamp,
    built_at: timestamp.nullable().describe("Null until built."),
  })
  .meta({ id: "Template" });
export type Template = z.output<typeof Template>;

export const TemplateList = z
  .object({ items: z.array(Template), next_cursor: z.string().nullable() })
  .meta({ id: "TemplateList" });
export type TemplateList = z.output<typeof TemplateList>;

export const ListQuery = z.strictObject({
  cursor: z.string().max(2048).optional(),
  limit: z.int().min(1).max(100).default(50),
});

export const LogsQuery = z.strictObject({
  after: z.int().min(0).default(0).describe("Only what was said after the piece of this number."),
  limit: z.int().min(1).max(1000).default(1000),
  follow: z.boolean().default(false),
});

const LogPiece = z.object({
  seq: z.int(),
  step: z.int().describe("From 1."),
  at: timestamp,
  text: z.string(),
});

export const TemplateLogs = z
  .object({
    items: z.array(LogPiece),
    next_after: z.int().describe("Where to go on."),
    truncated: z.boolean().describe("The first 4 MiB are kept."),
  })
  .meta({ id: "TemplateLogs" });
export type TemplateLogs = z.output<typeof TemplateLogs>;

/** One `data:` line of a followed log; the last one says how the build ended. */
export const TemplateLogEvent = z
  .union([
    LogPiece.extend({ kind: z.literal("log") }),
    z.object({
      kind: z.literal("finished"),
      status: z.enum(["ready", "failed"]),
      error_message: z.string().nullable(),
    }),
  ])
  .meta({ id: "TemplateLogEvent" });
export type TemplateLogEvent = z.output<typeof TemplateLogEvent>;

/** The only way from a row to JSON. */
export function toTemplate(row: TemplateRow): Template {
  return {
    id: row.id,
    name: row.name,
    base_template: row.base_template,
    base_template_id: row.base_template_id,
    recipe: row.recipe,
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
