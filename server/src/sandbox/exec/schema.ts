/** Request and response schemas of exec. */
import { z } from "zod";
import { EgressDenied } from "./egress-denials.ts";
import { outputStream, processId } from "../fields.ts";
import { Env } from "../sandboxes/schema.ts";

const noNul = (text: string): boolean => !text.includes("\0");
const argument = z.string().max(131_072).refine(noNul, { error: "must not contain NUL" });

export const Exec = z
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
    timeout_seconds: z
      .int()
      .min(1)
      .max(3600)
      .default(60)
      .describe("Seconds until the command's process group is killed, 1 to 3600. Default: 60."),
    stream: z
      .boolean()
      .default(false)
      .describe(
        "Respond with server-sent events while the command runs. Default: false, one JSON object at its end.",
      ),
    env: Env.optional().describe(
      "Environment variables of the command, in addition to the sandbox's. Default: none. Extension.",
    ),
    user: z
      .string()
      .min(1)
      .max(64)
      .refine(noNul, { error: "must not contain NUL" })
      .optional()
      .describe(
        "Name or id of the user that runs the command. Default: `root`, or the USER of the template's Dockerfile or image. Extension.",
      ),
    stdin: z
      .base64()
      .max(16 * 1024 ** 2)
      .optional()
      .describe("Standard input as base64, at most 16,777,216 characters. Extension."),
  })
  .refine((body) => (body.command === undefined) !== (body.args === undefined), {
    error: "is required (or args, but not both)",
    path: ["command"],
  })
  .meta({ id: "ExecRequest" });
export type Exec = z.output<typeof Exec>;

export const KilledBy = z
  .literal("out_of_memory")
  .nullable()
  .describe(
    "`out_of_memory` if the command failed because the sandbox ran out of memory and one of the command's processes was killed. The sandbox keeps running. Null otherwise.",
  );

export const ExecResult = z
  .object({
    stdout: z.string().describe("Standard output as text, decoded as UTF-8; the first 8 MiB."),
    stderr: z.string().describe("Standard error as text, decoded as UTF-8; the first 8 MiB."),
    exit_code: z.int().describe("Exit code. 124 after a timeout, 128 + n after signal n."),
    duration_ms: z.int().describe("Run time of the command in milliseconds."),
    timed_out: z.boolean().describe("True if the command was killed at its `timeout_seconds`."),
    truncated: z
      .boolean()
      .describe("True if `stdout` or `stderr` was longer than 8 MiB and was cut after that."),
    signal: z
      .string()
      .nullable()
      .describe("Signal that ended the command, such as `SIGKILL`. Null if it exited, and after a timeout."),
    killed_by: KilledBy,
    egress_denied: EgressDenied,
  })
  .meta({ id: "ExecResult" });
export type ExecResult = z.output<typeof ExecResult>;

/** A `data:` line of the stream. */
export const ExecFrame = z
  .discriminatedUnion("kind", [
    z.object({ kind: z.literal("exec_started").describe("First frame: the command runs."), pid: processId }),
    z.object({
      kind: z.literal("exec_chunk").describe("Frame with a piece of output."),
      stream: outputStream,
      data: z.string().describe("Piece of output as base64."),
    }),
    z.object({
      kind: z.literal("exec_exited").describe("Last frame of a command that exited."),
      code: z.int().describe("Exit code of the command, 0 to 255."),
      duration_ms: z.int().describe("Run time of the command in milliseconds."),
      killed_by: KilledBy.optional(),
      egress_denied: EgressDenied,
    }),
    z.object({
      kind: z.literal("error").describe("Last frame after a timeout, a signal or an error."),
      code: z.string().describe("`exec_timeout`, `killed_by_signal`, or the code of another error."),
      message: z.string().describe("The error in one sentence."),
      signal: z
        .string()
        .nullable()
        .describe("Signal that ended the command, such as `SIGKILL`. Null if there was none."),
      duration_ms: z
        .int()
        .nullable()
        .describe("Run time of the command in milliseconds. Null if its end is not known."),
      killed_by: KilledBy.optional(),
      egress_denied: EgressDenied,
    }),
  ])
  .meta({ id: "ExecFrame" });
export type ExecFrame = z.output<typeof ExecFrame>;
