/** The wire of background commands. */
import { z } from "zod";
import { EgressDenied } from "../exec/denied.ts";
import { type ExecFrame, KilledBy } from "../exec/schema.ts";
import { Env } from "../sandboxes/schema.ts";
import type { CommandRow } from "./store.ts";

const noNul = (text: string): boolean => !text.includes("\0");
const argument = z.string().max(131_072).refine(noNul, { error: "must not contain NUL" });
const timestamp = z.iso.datetime();

export const CommandParams = z.strictObject({ id: z.string().max(64), cmd: z.string().max(64) });

export const CommandStart = z
  .strictObject({
    command: argument
      .min(1)
      .optional()
      .describe("Shell command, run by /bin/bash -c, or by sh if bash is missing."),
    args: z
      .array(argument)
      .min(1)
      .max(1024)
      .optional()
      .describe("Program and arguments to run without a shell, instead of `command`. Extension."),
    cwd: z
      .string()
      .max(4095)
      .refine(noNul, { error: "must not contain NUL" })
      .optional()
      .describe("Default /workspace."),
    env: Env.optional(),
    tag: z
      .string()
      .min(1)
      .max(64)
      .refine(noNul, { error: "must not contain NUL" })
      .optional()
      .describe("A word of yours to find the command again by."),
    user: z
      .string()
      .min(1)
      .max(64)
      .refine(noNul, { error: "must not contain NUL" })
      .optional()
      .describe("User name or number. Default `root`. Extension."),
    timeout_seconds: z
      .int()
      .min(1)
      .max(86_400)
      .optional()
      .describe("Seconds until the process group is killed with `exit_code` 124. Default: none. Extension."),
    stdin: z
      .base64()
      .max(87_384)
      .optional()
      .describe(
        "Complete standard input as base64, up to 64 KiB. The input is closed after it. Default: the input stays open. Extension.",
      ),
  })
  .refine((body) => (body.command === undefined) !== (body.args === undefined), {
    error: "is required (or args, but not both)",
    path: ["command"],
  })
  .meta({ id: "CommandStart" });
export type CommandStart = z.output<typeof CommandStart>;

export const commandStatuses = ["running", "exited", "killed", "lost"] as const;

export const Command = z
  .object({
    id: z.string(),
    command: z.string(),
    status: z
      .enum(commandStatuses)
      .describe(
        "`killed`: ended after a delete. `lost`: its machine is gone, or forgot it, and nobody saw how it ended.",
      ),
    pid: z.int(),
    exit_code: z
      .int()
      .nullable()
      .describe("Exit code. 124 after a timeout, 128 + n after signal n. Null while it runs."),
    killed_by: KilledBy,
    started_at: timestamp,
    ended_at: timestamp.nullable(),
    tag: z.string().nullable(),
    output_bytes: z.int().describe("All it wrote so far; the last 16 MiB are kept."),
    egress_denied: EgressDenied,
  })
  .meta({ id: "Command" });
export type Command = z.output<typeof Command>;

export const CommandList = z
  .object({ items: z.array(Command), next_cursor: z.string().nullable() })
  .meta({ id: "CommandList" });

export const LogsQuery = z.strictObject({
  offset: z.int().min(0).default(0).describe("Of the first byte wanted, in all the command ever wrote."),
  limit: z
    .int()
    .min(1)
    .max(4 * 1024 ** 2)
    .default(1024 ** 2)
    .describe("Most bytes of output in the answer."),
  follow: z
    .boolean()
    .default(false)
    .describe(
      "Answers server-sent events until the command has ended; `Last-Event-ID` goes on behind that event.",
    ),
});
export type LogsQuery = z.output<typeof LogsQuery>;

export const CommandLogs = z
  .object({
    chunks: z.array(
      z.object({
        stream: z.enum(["stdout", "stderr"]),
        offset: z.int(),
        data: z.string().describe("Base64."),
      }),
    ),
    next_offset: z.int().describe("Where to go on."),
    dropped_bytes: z.int().describe("From the beginning, that are no longer kept."),
  })
  .meta({ id: "CommandLogs" });
export type CommandLogs = z.output<typeof CommandLogs>;

/** Exec's frames; the event's `id:` is the offset to go on from. */
export interface LogEvent {
  id: number;
  data: ExecFrame;
}

export const CommandInput = z
  .strictObject({
    data: z.base64().max(700_000).default("").describe("Base64, up to 512 KiB."),
    eof: z.boolean().default(false).describe("Closes the input after it."),
  })
  .meta({ id: "CommandInput" });
export type CommandInput = z.output<typeof CommandInput>;

export const CommandInputWritten = z.object({ bytes_written: z.int() }).meta({ id: "CommandInputWritten" });

/** The only way from a row to JSON. `isLost` where nobody can say any more how it ended. */
export function toCommand(row: CommandRow, isLost = false): Command {
  return {
    id: row.id,
    command: row.command,
    status: isLost && row.status === "running" ? "lost" : row.status,
    pid: row.pid,
    exit_code: row.exit_code,
    killed_by: row.killed_by,
    started_at: row.started_at.toISOString(),
    ended_at: row.ended_at?.toISOString() ?? null,
    tag: row.tag,
    output_bytes: row.output_bytes,
  };
}
