/**
 * What an operator sees of the machines at /metrics: how many there are, whose they are and how far, and how many warm
 * ones the pool wants. Counted when somebody asks, so that nothing has to be kept in step.
 */
import { Gauge, register } from "prom-client";
import type { Db } from "#schema.ts";
import type { Host } from "./host.ts";
import type { Pool } from "../placement/pool.ts";
import { statesOfHost } from "../store.ts";

/** The process's metrics speak of this host until the answer is called. */
export function countMachines(deps: { db: Db; host: Host; pool: Pool }): () => void {
  const gauges = [machinesGauge(deps.db, deps.host), wantedGauge(deps.pool)];
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

function machinesGauge(db: Db, host: Host): { name: string; gauge: Gauge } {
  const name = "kontor_machines";
  const help =
    "Machines of this host by owner; state is starting, ready, or going where it is to be removed.";
  const gauge = new Gauge({
    name,
    help,
    labelNames: ["owner", "state"],
    registers: [],
    async collect() {
      const rows = await statesOfHost(db, host.id);
      this.reset();
      for (const { id, owner_kind: owner, desired, observed } of rows) {
        // What is seen of a machine is written down for the pool alone; an owner's is seen here, as it starts.
        const seen = owner === "pool" ? observed : host.isStarting(id) ? "starting" : "ready";
        this.inc({ owner, state: desired === "removed" ? "going" : seen });
      }
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
