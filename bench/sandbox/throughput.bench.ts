/**
 * The API without machines: `GET /v1/sandboxes/{id}` with authentication and without rate limits. Each request reads
 * its actor and its row from PostgreSQL.
 *
 * The server is pinned to one core and the client to the other. The kernel places PostgreSQL, so it also runs on the
 * server's core.
 */
import { join } from "node:path";
import { run as runProgram } from "@kontor/runtime/exec.ts";
import type { Server } from "../../e2e/support/server.ts";
import type { BenchContext } from "../support/contract.ts";
import { withOwnServer, withoutPool } from "../support/own-server.ts";
import { cpuSeconds, postmasterOf, withChildren } from "../support/processes.ts";

export const name = "throughput";

const connections = 32;
const warmUpSeconds = 3;
const seconds = 10;
const client = join(import.meta.dirname, "../support/load.ts");

export async function run(context: BenchContext): Promise<void> {
  await withOwnServer(context, { ...withoutPool, KONTOR_RATE_LIMITS: "off" }, async (server, api) => {
    const { id } = await api.create();
    // The benchmark reads only the row of the sandbox, so its machine is removed.
    await api.remove(id);
    const { pid = 0 } = server;
    await pin([pid], 0);
    await load(server, id, warmUpSeconds);
    context.progress("server on one core", 0.2);
    const usedBefore = cpuSeconds(pid);
    const spread = await load(server, id, seconds);
    const perRequest = ((cpuSeconds(pid) - usedBefore) / (spread * seconds)) * 1e6;
    context.progress("server and PostgreSQL on one core", 0.6);
    await pin(withChildren(postmasterOf(server.dataDir)), 0);
    const together = await load(server, id, seconds);

    const note = `${connections} connections for ${seconds} s, authenticated, rate limits off by configuration`;
    const what = "GET /v1/sandboxes/{id}";
    context.report({
      what: `${what}, server on one core`,
      value: spread,
      unit: "req/s",
      bar: { atLeast: 3000 },
      note,
    });
    context.report({ what: `${what}, CPU of the server`, value: perRequest, unit: "µs a request", note });
    context.report({
      what: `${what}, server and PostgreSQL on one core`,
      value: together,
      unit: "req/s",
      note,
    });
  });
}

async function pin(pids: readonly number[], core: number): Promise<void> {
  for (const pid of pids) {
    // A connection of PostgreSQL may have closed meanwhile.
    await runProgram(["taskset", "--all-tasks", "--cpu-list", "--pid", String(core), String(pid)], {
      okCodes: [0, 1],
    });
  }
}

async function load(server: Server, id: string, forSeconds: number): Promise<number> {
  const { hostname, port } = new URL(server.baseUrl);
  const what = [hostname, port, `/v1/sandboxes/${id}`, server.token, String(connections), String(forSeconds)];
  const { stdout } = await runProgram(["taskset", "--cpu-list", "1", process.execPath, client, ...what], {
    timeoutMs: 60_000,
  });
  const result = JSON.parse(stdout) as { requests: number; seconds: number; failed: number };
  if (result.failed > 0) throw new Error(`${result.failed} of ${result.requests} requests failed`);
  return result.requests / result.seconds;
}
