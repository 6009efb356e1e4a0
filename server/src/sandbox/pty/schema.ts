/** Request and response schemas of terminals. */
import { z } from "zod";
import type { CommandRecord } from "#machines/host/guest.ts";
import { exitCode, signalName } from "../exec/exec.ts";
import { processId, sandboxIdParameter } from "../fields.ts";
import { Env } from "../sandboxes/schema.ts";

const noNul = (text: string): boolean => !text.includes("\0");
const text = (max: number) => z.string().min(1).max(max).refine(noNul, { error: "must not contain NUL" });
const timestamp = z.iso.datetime();
const side = z.int().min(1).max(1000);

export const PtyParams = z.strictObject({
  id: sandboxIdParameter,
  pty: z.string().max(64).describe("Id of the terminal: `pty_` and 20 letters and digits."),
});

const start = {
  cols: side.default(80).describe("Width of the terminal in characters, 1 to 1000. Default: 80."),
  rows: side.default(24).describe("Height of the terminal in lines, 1 to 1000. Default: 24."),
  command: text(131_072)
    .optional()
    .describe(
      "Shell command, run by /bin/bash -c, or by sh if bash is missing. Default: the user's login shell.",
    ),
  cwd: text(4095)
    .optional()
    .describe(
      "Working directory. Default: /workspace, or the WORKDIR of the template's Dockerfile or image.",
    ),
  user: text(64)
    .optional()
    .describe(
      "Name or id of the user that runs the program. Default: `root`, or the USER of the template's Dockerfile or image.",
    ),
};

export const PtyStart = z
  .strictObject({
    ...start,
    env: Env.optional().describe(
      "Environment variables of the program, in addition to the sandbox's. Default: `TERM` is `xterm-256color`.",
    ),
  })
  .meta({ id: "PtyStart" });
export type PtyStart = z.output<typeof PtyStart>;

/** Query of the WebSocket handshake. The query has no `env`, because URLs appear in logs. */
export const PtyOpen = z.strictObject(start);

export const PtyAttach = z.strictObject({
  offset: z
    .int()
    .min(0)
    .optional()
    .describe(
      "Offset of the first byte to send: `offset` of `started`, plus all bytes received or `skipped` since.",
    ),
  scrollback: z
    .int()
    .min(0)
    .max(16 * 1024 ** 2)
    .default(64 * 1024)
    .describe(
      "Bytes of earlier output to send first, 0 to 16,777,216. Default: 65,536. Ignored with `offset`.",
    ),
  cols: side.optional().describe("New width in characters, 1 to 1000; takes effect together with `rows`."),
  rows: side.optional().describe("New height in lines, 1 to 1000; takes effect together with `cols`."),
});
export type PtyAttach = z.output<typeof PtyAttach>;

export const Pty = z
  .object({
    id: z.string().describe("Id of the terminal: `pty_` and 20 letters and digits."),
    command: z
      .string()
      .describe("Shell command of the terminal, by default one that starts the user's login shell."),
    status: z
      .enum(["running", "exited", "killed"])
      .describe("Status. `killed`: the program ended after a delete request."),
    pid: processId,
    cols: z.int().describe("Current width in characters."),
    rows: z.int().describe("Current height in lines."),
    exit_code: z.int().nullable().describe("Exit code. 128 + n after signal n. Null while the program runs."),
    started_at: timestamp.describe("Time of the start."),
    ended_at: timestamp.nullable().describe("Time of the end. Null while the program runs."),
    output_bytes: z.int().describe("Number of output bytes so far. The last 16 MiB are kept."),
  })
  .meta({ id: "Pty" });
export type Pty = z.output<typeof Pty>;

export const PtyList = z
  .object({ items: z.array(Pty).describe("Running terminals and the last ones that ended, newest first.") })
  .meta({ id: "PtyList" });

/** Text messages of a viewer; keys are binary messages. */
export const PtyRequest = z
  .strictObject({
    kind: z.literal("resize").describe("Request to resize the terminal for all viewers."),
    cols: side.describe("New width in characters, 1 to 1000."),
    rows: side.describe("New height in lines, 1 to 1000."),
  })
  .meta({ id: "PtyRequest" });

/** Text messages of the server; output is binary. */
export const PtyMessage = z
  .discriminatedUnion("kind", [
    z.object({
      kind: z.literal("started").describe("First message: the client is attached to the terminal."),
      id: z.string().describe("Id of the terminal: `pty_` and 20 letters and digits."),
      pid: processId,
      offset: z.int().describe("Offset of the next binary byte in all output of the terminal."),
    }),
    z.object({
      kind: z.literal("skipped").describe("Mark at the place of output that is no longer kept."),
      bytes: z
        .int()
        .describe("Number of output bytes that are missing here because they are no longer kept."),
    }),
    z.object({
      kind: z.literal("exited").describe("Last message: the program ended."),
      code: z.int().nullable().describe("Exit code of the program. Null if a signal ended it."),
      signal: z
        .string()
        .nullable()
        .describe("Signal that ended the program, such as `SIGHUP`. Null if it exited."),
    }),
    z.object({
      kind: z.literal("error").describe("Last message after an error."),
      code: z.string().describe("Stable code for programs, such as `sandbox_paused`."),
      detail: z.string().describe("Cause of the error, and the cure."),
    }),
  ])
  .meta({ id: "PtyMessage" });
export type PtyMessage = z.output<typeof PtyMessage>;

/** The only conversion from a machine's record to JSON. */
export function toPty(record: CommandRecord): Pty {
  const isRunning = record.status === "running";
  const exit = { code: record.exitCode, signal: record.signal, timedOut: record.timedOut };
  return {
    id: record.id,
    command: record.text,
    status: record.status,
    pid: record.pid,
    cols: record.terminal?.cols ?? 0,
    rows: record.terminal?.rows ?? 0,
    exit_code: isRunning ? null : exitCode(exit),
    started_at: record.startedAt.toISOString(),
    ended_at: record.endedAt?.toISOString() ?? null,
    output_bytes: record.outputBytes,
  };
}

export function exitMessage({ exitCode: code, signal }: CommandRecord): PtyMessage {
  return { kind: "exited", code, signal: signalName(signal) };
}
