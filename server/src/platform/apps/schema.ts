/** Response schemas of running apps. */
import { z } from "zod";
import type { KeptLine } from "#machines/host/log-rings.ts";
import { ProjectId } from "../input/schema.ts";

export const AppParams = z.object({ project_id: ProjectId });

const environmentId = z.guid().optional().describe("Id (UUID) of the environment. Default: production.");
export const AppQuery = z.strictObject({ environment_id: environmentId });

export const LogsQuery = z.strictObject({
  environment_id: environmentId,
  lines: z
    .int()
    .min(1)
    .max(5000)
    .default(200)
    .describe("Number of lines to return, the newest ones. Default: 200."),
  follow: z
    .boolean()
    .default(false)
    .describe(
      "Stream these lines, then each new one, as server-sent events. Send the last `id:` as `Last-Event-ID` to resume. Default: false.",
    ),
});
export type LogsQuery = z.output<typeof LogsQuery>;

export const AppStats = z
  .object({
    cpu_percent: z
      .number()
      .describe("CPU use over the last second, in percent of one core. 0 if nothing runs."),
    cpu_limit: z.number().describe("CPU cores that the app may use, such as 0.5."),
    memory_bytes: z.int().describe("Memory in use, in bytes. 0 if nothing runs."),
    memory_limit_bytes: z
      .int()
      .describe(
        "Current memory limit in bytes. The limit grows when memory runs short, up to the maximum of the app's size.",
      ),
    network_rx_bytes: z
      .int()
      .describe(
        "Bytes received since the app or this server started: requests of visitors, and network traffic of the app's processes.",
      ),
    network_tx_bytes: z
      .int()
      .describe(
        "Bytes sent since the app or this server started: responses to visitors, and network traffic of the app's processes.",
      ),
    sampled_at: z.iso.datetime().nullable().describe("Time of the measurement (UTC). Null if nothing runs."),
  })
  .meta({ id: "AppStats" });
export type AppStats = z.output<typeof AppStats>;

const appStatuses = ["running", "asleep", "starting", "crashed", "stopped"] as const;

export const ProcessHealth = z
  .object({
    status: z
      .enum(appStatuses)
      .describe(
        "`starting`: does not listen yet, or restarts. `crashed`: ended five times in a row; the server restarts it after pauses of up to one minute. `stopped`: nothing is deployed.",
      ),
    uptime_seconds: z.int().describe("Uptime of the process in seconds. 0 if no process runs."),
    restart_count: z.int().describe("Number of restarts since the deployment."),
    last_exit_code: z
      .int()
      .nullable()
      .describe("Exit code of the last process that ended; 128 + n for signal n. Null if there is none."),
  })
  .meta({ id: "ProcessHealth" });
export type ProcessHealth = z.output<typeof ProcessHealth>;

export const AppLogLine = z
  .object({
    at: z.iso.datetime().describe("Time when the server received the line (UTC)."),
    stream: z
      .enum(["stdout", "stderr", "system"])
      .describe("Stream of the line. `system`: a message of the server about the app."),
    text: z.string().describe("Text of the line, without its newline. Lines above 8 KiB are split."),
  })
  .meta({ id: "AppLogLine" });
export type AppLogLine = z.output<typeof AppLogLine>;

export const AppLogs = z
  .object({
    lines: z.array(AppLogLine).describe("Lines, oldest first."),
    truncated: z.boolean().describe("True if older lines exist that are not in `lines`."),
  })
  .meta({ id: "AppLogs" });
export type AppLogs = z.output<typeof AppLogs>;

export function toLine({ at, stream, text }: KeptLine): AppLogLine {
  return { at: new Date(at).toISOString(), stream, text };
}
