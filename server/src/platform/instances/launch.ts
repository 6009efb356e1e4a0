/** Start parameters of a function's process: wrapper program, environment and limits of the machine. */
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

/** A built version, reduced to the fields that an instance needs. */
export type Runnable = Pick<VersionRow, "id" | "function_id" | "runtime"> & { image_id: string };

/** Limit in bytes of a request's body, and of a response that `invoke` returns. */
const maxBodyBytes = 6 * 1024 ** 2;

const mib = 1024 ** 2;
const programs = {
  nodejs: { argv: ["node", "/opt/kontor/function/nodejs/main.mjs"], handler: "/app/handler.mjs" },
  python: { argv: ["python3", "/opt/kontor/function/python/main.py"], handler: "/app/handler.py" },
} as const;

/**
 * Concurrent requests of an instance, by runtime. In Node, requests mostly wait for I/O. In Python, each has a thread.
 */
export const concurrency = { nodejs: 50, python: 10 } as const;

/** Limit of a function's instances, by plan. */
export const maxInstances = { starter: 1, pro: 3, team: 10 } as const;

export function launchOf({ runtime }: Pick<Runnable, "runtime">): Launch {
  const { argv, handler } = programs[runtime];
  return {
    argv: [...argv],
    // A user without a name, whose process may write to the machine's /tmp only.
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

/** Returns the environment of a process that starts now. The server's values override the owner's. */
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

/** True if the process was started with an environment that has changed since. */
export function isStale(
  app: Pick<App, "secrets">,
  row: Pick<InstanceRow, "id" | "env_sealed">,
  env: Environment,
): boolean {
  if (row.env_sealed === null) return true;
  return !isDeepStrictEqual(JSON.parse(app.secrets.open(row.env_sealed, place(row.id)).toString()), env);
}

/** Returns a request's timeout as of the start of the process; zero if the process never started. */
export function begunTimeoutMs(
  app: Pick<App, "secrets">,
  { id, env_sealed }: Pick<InstanceRow, "id" | "env_sealed">,
): number {
  if (env_sealed === null) return 0;
  const env = JSON.parse(app.secrets.open(env_sealed, place(id)).toString()) as Environment;
  return Number(env["KONTOR_TIMEOUT_MS"]);
}

/**
 * Returns the resources of an instance. Each gets a whole core, because a start needs CPU. The host divides the CPU
 * among busy instances.
 */
export function resourcesOf({
  memory_mb,
}: Pick<ServedRow, "memory_mb">): MachineRequest["shape"]["resources"] {
  return { vcpus: 1, memoryBytes: memory_mb * mib, diskBytes: 1024 * mib, maxProcesses: 256 };
}

function place(instanceId: string): string {
  return `function_instances:${instanceId}:env`;
}
