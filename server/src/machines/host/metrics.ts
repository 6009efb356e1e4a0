/**
 * Metrics of machines at /metrics: their number by owner and state, and the number of warm machines that the pool
 * wants. Both numbers are counted at each scrape.
 */
import { Gauge, register } from "prom-client";
import type { Db } from "#schema.ts";
import type { Host } from "./host.ts";
import type { Pool } from "../placement/pool.ts";
import { statesOfHost } from "../store.ts";

/** Reports this host in the process's metrics until the returned function is called. */
export function countMachines(deps: { db: Db; host: Host; pool: Pool }): () => void {
  const gauges = [machinesGauge(deps.db, deps.host), wantedGauge(deps.pool)];
  // The process has one registry, which reports the host that opened last.
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
    "Machines of this host by owner; state is starting, ready, or going while it is being removed.";
  const gauge = new Gauge({
    name,
    help,
    labelNames: ["owner", "state"],
    registers: [],
    async collect() {
      const rows = await statesOfHost(db, host.id);
      this.reset();
      for (const { id, owner_kind: owner, desired, observed } of rows) {
        // The row has the observed state of pooled machines only; the host knows whether an owner's machine is
        // starting.
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
