/** A server nobody asks anything: what it and its PostgreSQL hold in memory and use of a core. */
import { setTimeout as sleep } from "node:timers/promises";
import type { BenchContext } from "./contract.ts";
import { withOwnServer, withoutPool } from "./own-server.ts";
import { cpuSeconds, proportionalBytes, serverProcesses } from "./processes.ts";

export const name = "idle";

/** Start-up work (statistics, first garbage collections) is over by then. */
const restMs = 15_000;
const windowMs = 30_000;

export async function run(context: BenchContext): Promise<void> {
  await withOwnServer(context, withoutPool, async (server) => {
    context.progress("letting it come to rest", 0.1);
    await sleep(restMs);
    const { server: pid, postgres } = serverProcesses(server.pid ?? 0, server.dataDir);
    context.progress(`watching it for ${windowMs / 1000} s`, 0.4);
    const [usedBefore, postgresBefore, begin] = [cpuSeconds([pid]), cpuSeconds(postgres), performance.now()];
    await sleep(windowMs);
    const spent = (performance.now() - begin) / 1000;
    const serverPercent = ((cpuSeconds([pid]) - usedBefore) / spent) * 100;
    const postgresPercent = ((cpuSeconds(postgres) - postgresBefore) / spent) * 100;
    const serverMb = proportionalBytes([pid]) / 1e6;
    const postgresMb = proportionalBytes(postgres) / 1e6;
    context.report({
      what: "idle: memory of server and PostgreSQL",
      value: serverMb + postgresMb,
      unit: "MB",
      bar: { atMost: 250 },
      note: `PSS; server ${serverMb.toFixed(0)} MB, PostgreSQL ${postgresMb.toFixed(0)} MB in ${postgres.length} processes`,
    });
    context.report({
      what: "idle: CPU of server and PostgreSQL",
      value: serverPercent + postgresPercent,
      unit: "% of a core",
      bar: { atMost: 2 },
      note: `over ${windowMs / 1000} s, pool empty; server ${serverPercent.toFixed(2)} %, PostgreSQL ${postgresPercent.toFixed(2)} %`,
    });
  });
}
