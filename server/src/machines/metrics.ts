/**
 * What an operator sees of the machines at /metrics: how many there are, whose they are and how far, and how many warm
 * ones the pool wants. Counted when somebody asks, so that nothing has to be kept in step.
 */
import { Gauge, register } from "prom-client";
import type { Db } from "#db/db.ts";
import type { Pool } from "./pool.ts";
import { countByState } from "./store.ts";

/** The process's metrics speak of this host until the answer is called. */
export function countMachines(deps: { db: Db; hostId: string; pool: Pool }): () => void {
  const gauges = [machinesGauge(deps.db, deps.hostId), wantedGauge(deps.pool)];
  // One registry for a process: the latest host to open is the one that counts.
  for (const { name, gauge } of gauges) {
    register.removeSingleMetric(name);
    register.registerMetric(gauge);
  }
  return () => {
    for (const { name, gauge } of gauges) {
      if (register.getSingleMetric(name) === gauge) register.removeSingleMetric(name);
    }
  };
}

function machinesGauge(db: Db, hostId: string): { name: string; gauge: Gauge } {
  const name = "kontor_machines";
  const help =
    "Machines of this host by owner; state is starting, ready, dead, or going where it is to be removed.";
  const gauge = new Gauge({
    name,
    help,
    labelNames: ["owner", "state"],
    registers: [],
    async collect() {
      const rows = await countByState(db, hostId);
      this.reset();
      for (const { owner, state, count } of rows) this.set({ owner, state }, count);
    },
  });
  return { name, gauge };
}

function wantedGauge(pool: Pool): { name: string; gauge: Gauge } {
  const name = "kontor_pool_wanted";
  const gauge = new Gauge({
    name,
    help: "Warm machines the pool wants, by template and size.",
    labelNames: ["pool"],
    registers: [],
    collect() {
      this.reset();
      for (const [key, count] of pool.targets()) this.set({ pool: key }, count);
    },
  });
  return { name, gauge };
}
