/** The wire of exec: one command in, its outcome or its frames out. */
import { z } from "zod";
import { EgressDenied } from "./denied.ts";
import { Env } from "../sandboxes/schema.ts";

const noNul = (text: string): boolean => !text.includes("\0");
const argument = z.string().max(131_072).refine(noNul, { error: "must not contain NUL" });

export const Exec = z
  .strictObject({
    command: argument.min(1).optional().describe("Run by /bin/bash -c (sh where there is no bash)."),
    args: z
      .array(argument)
      .min(1)
      .max(1024)
      .optional()
      .describe("Program and arguments, without a shell. Extension."),
    cwd: z
      .string()
      .max(4095)
      .refine(noNul, { error: "must not contain NUL" })
      .optional()
      .describe("Default /workspace."),
    timeout_seconds: z.int().min(1).max(3600).default(60),
    stream: z.boolean().default(false),
    env: Env.optional().describe("Extension."),
    user: z
      .string()
      .min(1)
      .max(64)
      .refine(noNul, { error: "must not contain NUL" })
      .optional()
      .describe("User name or number. Default `root`. Extension."),
    stdin: z
      .base64()
      .max(16 * 1024 ** 2)
      .optional()
      .describe("Base64. Extension."),
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
    stdout: z.string(),
    stderr: z.string(),
    exit_code: z.int().describe("124 on timeout, 128 + n when signal n ended it."),
    duration_ms: z.int(),
    timed_out: z.boolean(),
    truncated: z.boolean().describe("A stream was longer than 8 MiB; its beginning is here."),
    signal: z.string().nullable(),
    killed_by: KilledBy,
    egress_denied: EgressDenied,
  })
  .meta({ id: "ExecResult" });
export type ExecResult = z.output<typeof ExecResult>;

/** One `data:` line of the stream. */
export const ExecFrame = z
  .discriminatedUnion("kind", [
    z.object({ kind: z.literal("exec_started"), pid: z.int() }),
    z.object({
      kind: z.literal("exec_chunk"),
      stream: z.enum(["stdout", "stderr"]),
      data: z.string().describe("Base64."),
    }),
    z.object({
      kind: z.literal("exec_exited"),
      code: z.int(),
      duration_ms: z.int(),
      killed_by: KilledBy.optional(),
      egress_denied: EgressDenied,
    }),
    z.object({
      kind: z.literal("error"),
      code: z.string().describe("exec_timeout, killed_by_signal, or the code of an error."),
      message: z.string(),
      signal: z.string().nullable(),
      duration_ms: z.int().nullable(),
      killed_by: KilledBy.optional(),
      egress_denied: EgressDenied,
    }),
  ])
  .meta({ id: "ExecFrame" });
export type ExecFrame = z.output<typeof ExecFrame>;
