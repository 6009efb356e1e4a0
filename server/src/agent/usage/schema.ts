/** Wire format of usage. */
import { z } from "zod";
import type { RunSums } from "./store.ts";

export const UsageQuery = z.strictObject({
  days: z
    .int()
    .min(1)
    .max(90)
    .default(30)
    .describe("Number of UTC days to sum, from 1 to 90, including today. Default 30."),
});

const tokens = {
  input_tokens: z.int().describe("Input tokens, including cached ones."),
  output_tokens: z.int().describe("Output tokens, including reasoning."),
  cached_input_tokens: z.int().describe("Input tokens that the provider read from its cache."),
  total_tokens: z.int().describe("Sum of `input_tokens` and `output_tokens`."),
};
const sums = {
  runs: z.int().describe("Number of runs created in the period, including active ones."),
  completed: z.int().describe("Number of these runs that are completed."),
  failed: z.int().describe("Number of these runs that have failed, including cancelled ones."),
  ...tokens,
  active_seconds: z.number().describe("Working time of the runs in seconds, without waits for people."),
};

export const Usage = z
  .object({
    agent: z.string().describe("Name of the agent."),
    days: z.int().describe("Number of UTC days in the period, including today."),
    from: z.iso.datetime().describe("Start of the period: 00:00 UTC of its first day."),
    to: z.iso.datetime().describe("End of the period: the time of the request."),
    totals: z.object(sums).describe("Sums of all runs in the period."),
    end_users: z
      .array(
        z.object({
          end_user_id: z.string().describe("End user of the runs. `-` stands for runs without an end user."),
          ...sums,
        }),
      )
      .describe("Sums by end user, most tokens first: the 1,000 end users with the most tokens."),
    by_day: z
      .array(
        z.object({
          day: z.iso.date().describe("UTC day on which the runs were created, for example `2026-01-31`."),
          ...sums,
        }),
      )
      .describe("Sums by day, oldest first. Days without runs are left out."),
    by_model: z
      .array(
        z.object({
          model: z.string().describe("Provider's name of the model."),
          calls: z.int().describe("Number of complete model calls, including summaries."),
          ...tokens,
        }),
      )
      .describe("Sums of the steps that ended in the period, by model."),
  })
  .meta({ id: "AgentUsage" });
export type Usage = z.output<typeof Usage>;

export function toSums(row: RunSums): Usage["totals"] {
  const { runs, completed, failed, input_tokens, output_tokens, cached_input_tokens, active_ms } = row;
  return {
    runs,
    completed,
    failed,
    input_tokens,
    output_tokens,
    cached_input_tokens,
    total_tokens: input_tokens + output_tokens,
    active_seconds: active_ms / 1000,
  };
}
