/** The wire of usage. */
import { z } from "zod";
import type { RunSums } from "./store.ts";

export const UsageQuery = z.strictObject({
  days: z.int().min(1).max(90).default(30).describe("Days of UTC, today the last of them."),
});

const tokens = {
  input_tokens: z.int(),
  output_tokens: z.int(),
  cached_input_tokens: z.int().describe("Of the input tokens, those the provider had in its cache."),
  total_tokens: z.int(),
};
const sums = {
  runs: z.int(),
  completed: z.int(),
  failed: z.int(),
  ...tokens,
  active_seconds: z.number().describe("How long runs were worked on."),
};

export const Usage = z
  .object({
    agent: z.string(),
    days: z.int(),
    from: z.iso.datetime(),
    to: z.iso.datetime(),
    totals: z.object(sums),
    end_users: z
      .array(z.object({ end_user_id: z.string(), ...sums }))
      .describe("`-` is whoever no run named; the thousand with the most tokens."),
    by_day: z.array(z.object({ day: z.iso.date(), ...sums })),
    by_model: z.array(z.object({ model: z.string(), calls: z.int(), ...tokens })),
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
