/** The host's own PostgreSQL 15 with the settings of the largest add-on, outside any container. */
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";
import { settings } from "@kontor/server/platform/addons/engines/postgres.ts";
import { extentOf } from "@kontor/server/platform/addons/sizes.ts";
import { freePort } from "../../cli/src/serve/port.ts";

export const programs = "/usr/lib/postgresql/15/bin";
const asPostgres = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"];
/** Matches the settings of an add-on's address and files, which do not affect its speed. */
const ofItsPlace =
  /^(listen_addresses|port|unix_socket_directories|hba_file|include|shared_preload_libraries) = .*\n/gm;

export interface HostPostgres extends AsyncDisposable {
  /** Environment in which PostgreSQL's programs find the server. */
  env: Record<string, string>;
  /** Directory for further files. */
  directory: string;
}

/**
 * Starts a PostgreSQL in a new directory beside `beside`, a directory on the measured disk. Disposal deletes all files.
 */
export async function startHostPostgres(beside: string): Promise<HostPostgres> {
  const directory = mkdtempSync(join(beside, "kontor-bench-postgres-"));
  const data = join(directory, "data");
  const port = await freePort();
  const start = (argv: string[]) => run([...asPostgres, ...argv], { cwd: "/", timeoutMs: 60_000 });
  const env = { PGHOST: "127.0.0.1", PGPORT: String(port), PGUSER: "postgres", PGDATABASE: "postgres" };
  const stop = async () => {
    await run([...asPostgres, `${programs}/pg_ctl`, "-D", data, "-m", "immediate", "stop"], {
      cwd: "/",
      okCodes: [0, 1, 3, 4],
    });
    rmSync(directory, { recursive: true, force: true });
  };
  try {
    chmodSync(directory, 0o711);
    mkdirSync(data);
    await run(["chown", "postgres:postgres", data]);
    const how = ["--data-checksums", "--auth=trust", "--locale=C.UTF-8", "--encoding=UTF8"];
    await start([`${programs}/initdb`, "-D", data, ...how]);
    const own = settings(extentOf("large")).replace(ofItsPlace, "");
    writeFileSync(
      join(data, "postgresql.auto.conf"),
      `${own}listen_addresses = '127.0.0.1'\nport = ${port}\nunix_socket_directories = ''\nshared_preload_libraries = 'pg_stat_statements'\n`,
    );
    await start([`${programs}/pg_ctl`, "-D", data, "-w", "-l", join(data, "log"), "start"]);
    return { env, directory, [Symbol.asyncDispose]: stop };
  } catch (error) {
    await stop();
    throw error;
  }
}
