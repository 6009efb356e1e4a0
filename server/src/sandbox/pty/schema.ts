/** The wire of terminals. */
import { z } from "zod";
import type { CommandRecord } from "#machines/guest.ts";
import { exitCode, signalName } from "../exec/exec.ts";
import { Env } from "../sandboxes/schema.ts";

const noNul = (text: string): boolean => !text.includes("\0");
const text = (max: number) => z.string().min(1).max(max).refine(noNul, { error: "must not contain NUL" });
const timestamp = z.iso.datetime();
const side = z.int().min(1).max(1000);

export const PtyParams = z.strictObject({ id: z.string().max(64), pty: z.string().max(64) });

const start = {
  cols: side.default(80),
  rows: side.default(24),
  command: text(131_072)
    .optional()
    .describe(
      "Run by /bin/bash -c (sh where there is no bash); where absent, the user's login shell takes over.",
    ),
  cwd: text(4095).optional().describe("Default /workspace."),
  user: text(64).optional().describe("A name or a number; root where absent."),
};

export const PtyStart = z
  .strictObject({ ...start, env: Env.optional().describe("TERM is xterm-256color unless it is given.") })
  .meta({ id: "PtyStart" });
export type PtyStart = z.output<typeof PtyStart>;

/** A handshake's. Without `env`: addresses end up in logs. */
export const PtyOpen = z.strictObject(start);

export const PtyAttach = z.strictObject({
  offset: z
    .int()
    .min(0)
    .optional()
    .describe("Of the first byte wanted: what `started` said, plus all binary bytes that came since."),
  scrollback: z
    .int()
    .min(0)
    .max(16 * 1024 ** 2)
    .default(64 * 1024)
    .describe("How much of what was shown before is wanted, in bytes; `offset` takes its place."),
  cols: side.optional().describe("Resizes, together with `rows`."),
  rows: side.optional(),
});
export type PtyAttach = z.output<typeof PtyAttach>;

export const Pty = z
  .object({
    id: z.string(),
    command: z.string(),
    status: z.enum(["running", "exited", "killed"]).describe("`killed`: ended after a delete."),
    pid: z.int(),
    cols: z.int(),
    rows: z.int(),
    exit_code: z.int().nullable().describe("128 + n when signal n ended it."),
    started_at: timestamp,
    ended_at: timestamp.nullable(),
    output_bytes: z.int().describe("All it wrote so far; the last 16 MiB are kept."),
  })
  .meta({ id: "Pty" });
export type Pty = z.output<typeof Pty>;

export const PtyList = z.object({ items: z.array(Pty) }).meta({ id: "PtyList" });

/** Text messages of a viewer; what is typed is binary. */
export const PtyRequest = z
  .strictObject({ kind: z.literal("resize"), cols: side, rows: side })
  .meta({ id: "PtyRequest" });

/** Text messages of ours; what is shown is binary. */
export const PtyMessage = z
  .discriminatedUnion("kind", [
    z.object({
      kind: z.literal("started"),
      id: z.string(),
      pid: z.int(),
      offset: z.int().describe("Of the next binary byte, in all the terminal ever showed."),
    }),
    z.object({
      kind: z.literal("skipped"),
      bytes: z.int().describe("So many were no longer kept; they would come here."),
    }),
    z.object({ kind: z.literal("exited"), code: z.int().nullable(), signal: z.string().nullable() }),
    z.object({ kind: z.literal("error"), code: z.string(), detail: z.string() }),
  ])
  .meta({ id: "PtyMessage" });
export type PtyMessage = z.output<typeof PtyMessage>;

/** The only way from a machine's record to JSON. */
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
