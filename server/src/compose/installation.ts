/** Files by which people and programs find a running server: `server.json` and `operator.json` in the data directory. */
import { readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { baseUrl, type Config } from "#config.ts";
import { caFile } from "#ingress/tls/local.ts";
import { writeStateFile } from "#lib/state-file.ts";

const serverFile = (dataDir: string) => join(dataDir, "server.json");

export interface Listening {
  port: number;
  tlsPort: number | undefined;
  startedAt: Date;
}

export function writeServerFile(dataDir: string, { port, tlsPort, startedAt }: Listening): void {
  const content = {
    pid: process.pid,
    port,
    tls_port: tlsPort,
    base_url: baseUrl({ port }),
    started_at: startedAt,
  };
  writeStateFile(serverFile(dataDir), content, 0o644);
}

export function removeServerFile(dataDir: string): void {
  rmSync(serverFile(dataDir), { force: true });
}

/** Address and process of the server that `server.json` names, for an error message; empty if there is none. */
export function findServer(dataDir: string): string {
  try {
    const { base_url, pid } = JSON.parse(readFileSync(serverFile(dataDir), "utf8")) as {
      base_url: string;
      pid: number;
    };
    return `: ${base_url} (process ${pid})`;
  } catch {
    return "";
  }
}

/** Writes the operator's credentials with the addresses of this installation. */
export function writeOperatorFile(config: Config, operator: object): void {
  const { port, publicUrl, appsDomain, previewDomain, tlsMode, dataDir } = config;
  const content = {
    base_url: baseUrl({ port }),
    public_url: publicUrl,
    ca_file: tlsMode === "local" ? caFile(dataDir) : null,
    apps_domain: appsDomain,
    preview_domain: previewDomain,
    ...operator,
  };
  writeStateFile(join(dataDir, "operator.json"), content, 0o600);
}

/** Version of the server's package. */
export function version(): string {
  const file = new URL("../../package.json", import.meta.url);
  return (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version;
}
