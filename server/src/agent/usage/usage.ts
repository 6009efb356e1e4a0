/** An agent's usage: runs and tokens by end user, day and model. */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { getAgent } from "../agents/agents.ts";
import { toSums, type Usage } from "./schema.ts";
import { type RunSums, sumByDay, sumByEndUser, sumByModel } from "./store.ts";

const endUsersMax = 1000;

export async function usage(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  reference: string,
  days: number,
): Promise<Usage> {
  const agent = await getAgent(app.db, actor, reference);
  const to = app.clock.now();
  const from = new Date(Date.UTC(to.getUTCFullYear(), to.getUTCMonth(), to.getUTCDate() - days + 1));
  const [endUsers, byDay, byModel] = await Promise.all([
    sumByEndUser(app.db, agent.id, from, endUsersMax),
    sumByDay(app.db, agent.id, from),
    sumByModel(app.db, agent.id, from),
  ]);
  return {
    agent: agent.name,
    days,
    from: from.toISOString(),
    to: to.toISOString(),
    totals: toSums(byDay.reduce(plus, nothing)),
    end_users: endUsers.map((row) => ({ end_user_id: row.end_user_id ?? "-", ...toSums(row) })),
    by_day: byDay.map((row) => ({ day: row.day, ...toSums(row) })),
    by_model: byModel.map((row) => ({ ...row, total_tokens: row.input_tokens + row.output_tokens })),
  };
}

const nothing: RunSums = {
  runs: 0,
  completed: 0,
  failed: 0,
  input_tokens: 0,
  output_tokens: 0,
  cached_input_tokens: 0,
  active_ms: 0,
};

function plus(a: RunSums, b: RunSums): RunSums {
  const names = Object.keys(nothing) as (keyof RunSums)[];
  return Object.fromEntries(names.map((name) => [name, a[name] + b[name]])) as unknown as RunSums;
}
