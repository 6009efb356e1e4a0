/** Exports the span of an ended run. A failure loses only the trace. */
import type { App } from "#app.ts";
import { getVersion } from "#agent/agents/agents.ts";
import type { AgentConfig } from "#agent/agents/config.ts";
import type { Tracing } from "#agent/tracing/tracing.ts";
import { findEnded } from "../store.ts";

export async function exportRootSpan(
  { db, log }: Pick<App, "db" | "log">,
  tracing: Tracing,
  id: string,
): Promise<void> {
  try {
    const run = await findEnded(db, id);
    if (!run) return;
    const { config } = await getVersion(db, { id: run.agent_id, latest_version: 0 }, String(run.version));
    tracing.addRootSpan(run, config as AgentConfig);
  } catch (error) {
    log.debug({ error, run: id }, "tracing the end of a run failed");
  }
}
