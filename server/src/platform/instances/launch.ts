/** How a function's process is begun: which program serves the handler, what it is told, what its machine may use. */
import { isDeepStrictEqual } from "node:util";
import type { App } from "#app.ts";
import type { MachineRequest } from "#machines/placement/placement.ts";
import { openVariables } from "../environments/variables.ts";
import type { InstanceRow, ServedRow, VersionRow } from "./store.ts";

type Environment = Record<string, string>;

export interface Launch {
  argv: string[];
  env: Environment;
  port: number;
  user?: string;
  cwd: string;
}

/** What an instance runs, and nothing of what it was made from. */
export type Runnable = Pick<VersionRow, "id" | "function_id" | "runtime"> & { image_id: string };

/** Of a request's body, and of what `invoke` collects of an answer. */
export const maxBodyBytes = 6 * 1024 ** 2;

const mib = 1024 ** 2;
const programs = {
  nodejs: { argv: ["node", "/opt/kontor/function/nodejs/main.mjs"], handler: "/app/handler.mjs" },
  python: { argv: ["python3", "/opt/kontor/function/python/main.py"], handler: "/app/handler.py" },
} as const;

/** Requests that one instance answers at once: Node's wait for others most of the time, Python's have a thread each. */
export const concurrency = { nodejs: 50, python: 10 } as const;

/** Instances of one function at once. */
export const mostInstances = { starter: 1, pro: 3, team: 10 } as const;

export function launchOf({ runtime }: Pick<Runnable, "runtime">): Launch {
  const { argv, handler } = programs[runtime];
  return {
    argv: [...argv],
    // Nobody's own: what it may write is the machine's /tmp.
    user: "nobody",
    cwd: "/app",
    port: 8080,
    env: {
      HOME: "/tmp",
      KONTOR_HANDLER: handler,
      ...(runtime === "nodejs" ? { NODE_ENV: "production" } : {}),
    },
  };
}

/** All that a process of the function is begun with now; what is ours to say stands above what its owner says. */
export function environmentOf(app: Pick<App, "secrets">, row: ServedRow): Environment {
  return {
    ...openVariables(app, "functions", row),
    KONTOR_TIMEOUT_MS: String(row.timeout_seconds * 1000),
    KONTOR_MAX_BODY: String(maxBodyBytes),
  };
}

export function sealEnvironment(app: Pick<App, "secrets">, id: string, env: Environment): Buffer {
  return app.secrets.seal(JSON.stringify(env), place(id));
}

/** Whether an instance was begun with something else than it would be now. */
export function isStale(
  app: Pick<App, "secrets">,
  row: Pick<InstanceRow, "id" | "env_sealed">,
  env: Environment,
): boolean {
  if (row.env_sealed === null) return true;
  return !isDeepStrictEqual(JSON.parse(app.secrets.open(row.env_sealed, place(row.id)).toString()), env);
}

/** For one request, as its program was told; zero where it was not begun. */
export function begunTimeoutMs(
  app: Pick<App, "secrets">,
  { id, env_sealed }: Pick<InstanceRow, "id" | "env_sealed">,
): number {
  if (env_sealed === null) return 0;
  const env = JSON.parse(app.secrets.open(env_sealed, place(id)).toString()) as Environment;
  return Number(env["KONTOR_TIMEOUT_MS"]);
}

/** A whole core for each: what a start needs is CPU, and what they use of it together is shared by the host. */
export function resourcesOf({
  memory_mb,
}: Pick<ServedRow, "memory_mb">): MachineRequest["shape"]["resources"] {
  return { vcpus: 1, memoryBytes: memory_mb * mib, diskBytes: 1024 * mib, maxProcesses: 256 };
}

function place(instanceId: string): string {
  return `function_instances:${instanceId}:env`;
}
