/** Request and response schemas of background commands. */
import { z } from "zod";
import { EgressDenied } from "../exec/egress-denials.ts";
import { type ExecFrame, KilledBy } from "../exec/schema.ts";
import { nextCursor, outputStream, processId, sandboxIdParameter } from "../fields.ts";
import { Env } from "../sandboxes/schema.ts";
import type { CommandRow } from "./store.ts";

const noNul = (text: string): boolean => !text.includes("\0");
const argument = z.string().max(131_072).refine(noNul, { error: "must not contain NUL" });
const timestamp = z.iso.datetime();

export const CommandParams = z.strictObject({
  id: sandboxIdParameter,
  cmd: z.string().max(64).describe("Id of the command: `cmd_` and 20 letters and digits."),
});

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
      .describe(
        "Working directory. Default: /workspace, or the WORKDIR of the template's Dockerfile or image.",
      ),
    env: Env.optional().describe(
      'Environment variables of the command, in addition to the sandbox\'s. Default: none. Example: {"MODE": "test"}.',
    ),
    tag: z
      .string()
      .min(1)
      .max(64)
      .refine(noNul, { error: "must not contain NUL" })
      .optional()
      .describe("Text of your choice to identify the command, at most 64 characters. Default: none."),
    user: z
      .string()
      .min(1)
      .max(64)
      .refine(noNul, { error: "must not contain NUL" })
      .optional()
      .describe(
        "Name or id of the user that runs the command. Default: `root`, or the USER of the template's Dockerfile or image. Extension.",
      ),
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

const commandStatuses = ["running", "exited", "killed", "lost"] as const;

export const Command = z
  .object({
    id: z.string().describe("Id of the command: `cmd_` and 20 letters and digits."),
    command: z.string().describe("Shell command, or the `args` joined by spaces."),
    status: z
      .enum(commandStatuses)
      .describe(
        "Status. `killed`: ended after a delete request. `lost`: ended unobserved, because the machine is gone or no longer has a record of it.",
      ),
    pid: processId,
    exit_code: z
      .int()
      .nullable()
      .describe(
        "Exit code. 124 after a timeout, 128 + n after signal n. Null while it runs, and if it is `lost`.",
      ),
    killed_by: KilledBy,
    started_at: timestamp.describe("Time of the start."),
    ended_at: timestamp
      .nullable()
      .describe("Time of the end. Null while the command runs, and if it is `lost`."),
    tag: z.string().nullable().describe("Tag given at the start. Null if none was given."),
    output_bytes: z.int().describe("Number of output bytes so far. The last 16 MiB are kept."),
    egress_denied: EgressDenied,
  })
  .meta({ id: "Command" });
export type Command = z.output<typeof Command>;

export const CommandList = z
  .object({
    items: z.array(Command).describe("Background commands of the page, newest first."),
    next_cursor: nextCursor,
  })
  .meta({ id: "CommandList" });

export const LogsQuery = z.strictObject({
  offset: z
    .int()
    .min(0)
    .default(0)
    .describe("Offset of the first byte to return, in all output of the command. Default: 0."),
  limit: z
    .int()
    .min(1)
    .max(4 * 1024 ** 2)
    .default(1024 ** 2)
    .describe(
      "Maximum of output bytes in the response, 1 to 4,194,304. Default: 1,048,576. Ignored with `follow`.",
    ),
  follow: z
    .boolean()
    .default(false)
    .describe("Respond with server-sent events until the command ends. Default: false."),
});
export type LogsQuery = z.output<typeof LogsQuery>;

export const CommandLogs = z
  .object({
    chunks: z
      .array(
        z.object({
          stream: outputStream,
          offset: z.int().describe("Offset of the first byte of the piece in all output of the command."),
          data: z.string().describe("Piece of output as base64."),
        }),
      )
      .describe("Pieces of output from `offset` on, in the order in which the command wrote them."),
    next_offset: z.int().describe("Value of `offset` for the next request."),
    dropped_bytes: z
      .int()
      .describe("Number of bytes from the beginning of the output that are no longer kept."),
  })
  .meta({ id: "CommandLogs" });
export type CommandLogs = z.output<typeof CommandLogs>;

/** Frames of exec; the event's `id:` is the offset to continue from. */
export interface LogEvent {
  id: number;
  data: ExecFrame;
}

export const CommandInput = z
  .strictObject({
    data: z
      .base64()
      .max(700_000)
      .default("")
      .describe("Bytes to write as base64, at most 512 KiB after decoding. Default: none."),
    eof: z.boolean().default(false).describe("Close the standard input after the write. Default: false."),
  })
  .meta({ id: "CommandInput" });
export type CommandInput = z.output<typeof CommandInput>;

export const CommandInputWritten = z
  .object({ bytes_written: z.int().describe("Number of decoded bytes written to the standard input.") })
  .meta({ id: "CommandInputWritten" });

/** The only conversion from a row to JSON. `isLost`: the end of the command cannot be found out any more. */
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
