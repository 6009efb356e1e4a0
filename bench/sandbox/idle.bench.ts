/** Measures the memory of an idle server and its share of a core, with PostgreSQL. */
import { setTimeout as sleep } from "node:timers/promises";
import type { BenchContext } from "../support/contract.ts";
import { withOwnServer, withoutPool } from "../support/own-server.ts";
import { cpuSeconds, postmasterOf, proportionalBytes, withChildren } from "../support/processes.ts";

export const name = "idle";

/** Wait in milliseconds, after which the work of the start (statistics, first garbage collections) has ended. */
const restMs = 15_000;
const windowMs = 30_000;

export async function run(context: BenchContext): Promise<void> {
  await withOwnServer(context, withoutPool, async (server) => {
    context.progress("letting it come to rest", 0.1);
    await sleep(restMs);
    const { pid = 0 } = server;
    const postmaster = postmasterOf(server.dataDir);
    context.progress(`watching it for ${windowMs / 1000} s`, 0.4);
    const readCpuSeconds = () => [cpuSeconds(pid), cpuSeconds(postmaster, { children: true })] as const;
    const [before, begin] = [readCpuSeconds(), performance.now()];
    await sleep(windowMs);
    const [after, spent] = [readCpuSeconds(), (performance.now() - begin) / 1000];
    const serverPercent = ((after[0] - before[0]) / spent) * 100;
    const postgresPercent = ((after[1] - before[1]) / spent) * 100;
    const postgres = withChildren(postmaster);
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
