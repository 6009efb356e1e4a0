/** The wire of running apps. */
import { z } from "zod";
import type { KeptLine } from "#machines/log-rings.ts";

export const AppParams = z.object({ project_id: z.guid() });

const environmentId = z.guid().optional().describe("Production where absent.");
export const AppQuery = z.strictObject({ environment_id: environmentId });

export const LogsQuery = z.strictObject({
  environment_id: environmentId,
  lines: z.int().min(1).max(5000).default(200).describe("The last so many."),
  follow: z
    .boolean()
    .default(false)
    .describe(
      "Answers server-sent events: those lines, then each as it comes. `Last-Event-ID` goes on behind that line.",
    ),
});
export type LogsQuery = z.output<typeof LogsQuery>;

export const AppStats = z
  .object({
    cpu_percent: z.number().describe("Of one core, over the last second."),
    cpu_limit: z.number().describe("Cores it may use."),
    memory_bytes: z.int(),
    memory_limit_bytes: z
      .int()
      .describe("What it may use at the moment: it grows under pressure, up to what its size allows."),
    network_rx_bytes: z
      .int()
      .describe(
        "Bytes received since the app or this server started: requests of visitors, and network traffic of the app's processes.",
      ),
    network_tx_bytes: z
      .int()
      .describe("Bytes sent since then: responses to visitors, and network traffic of the app's processes."),
    sampled_at: z.iso.datetime().nullable().describe("Null where nothing runs."),
  })
  .meta({ id: "AppStats" });
export type AppStats = z.output<typeof AppStats>;

export const appStatuses = ["running", "asleep", "starting", "crashed", "stopped"] as const;

export const ProcessHealth = z
  .object({
    status: z
      .enum(appStatuses)
      .describe(
        "`starting`: it does not listen yet, or is being started again. `crashed`: it ended five times in a row, and is started again once a minute. `stopped`: nothing is deployed.",
      ),
    uptime_seconds: z.int().describe("Of its process; 0 where none runs."),
    restart_count: z.int().describe("Since it was deployed."),
    last_exit_code: z.int().nullable().describe("128 + n where signal n ended it."),
  })
  .meta({ id: "ProcessHealth" });
export type ProcessHealth = z.output<typeof ProcessHealth>;

export const AppLogLine = z
  .object({
    at: z.iso.datetime(),
    stream: z.enum(["stdout", "stderr", "system"]).describe("`system`: said by the server about the app."),
    text: z.string(),
  })
  .meta({ id: "AppLogLine" });
export type AppLogLine = z.output<typeof AppLogLine>;

export const AppLogs = z
  .object({
    lines: z.array(AppLogLine).describe("The oldest first."),
    truncated: z.boolean().describe("There were more before."),
  })
  .meta({ id: "AppLogs" });
export type AppLogs = z.output<typeof AppLogs>;

export function toLine({ at, stream, text }: KeptLine): AppLogLine {
  return { at: new Date(at).toISOString(), stream, text };
}
