/** What the embedded PostgreSQL is told, as text: its command line and the two files that say who may connect. */

/** The role and the database everything is in. */
export const role = "kontor";
export const database = "kontor";

export function initdbArguments(dataDirectory: string): string[] {
  return [
    `--pgdata=${dataDirectory}`,
    `--username=${role}`,
    "--encoding=UTF8",
    // PostgreSQL's own provider: the bundled ICU is past its end of life, and libc's order changes with the host.
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--locale=C",
    "--auth=reject",
    "--no-instructions",
  ];
}

/** Settings on the command line win over postgresql.conf, so each start has exactly these. */
export function postgresArguments(
  directories: { data: string; socket: string; log: string; hba: string; ident: string },
  extra: Record<string, string> = {},
): string[] {
  const settings: Record<string, string> = {
    // A unix socket only: nothing on the network, and the kernel says who is at the other end.
    listen_addresses: "",
    unix_socket_directories: directories.socket,
    unix_socket_permissions: "0700",
    hba_file: directories.hba,
    ident_file: directories.ident,
    max_connections: "100",
    shared_buffers: "64MB",
    max_wal_size: "512MB",
    // No replica and no archive reads the log.
    wal_level: "minimal",
    max_wal_senders: "0",
    max_logical_replication_workers: "0",
    // Small rows by key: compiling queries and running them in parallel costs more than it gains.
    jit: "off",
    max_parallel_workers_per_gather: "0",
    // Saves the I/O worker processes of 18; everything fits the cache.
    io_method: "sync",
    timezone: "UTC",
    log_timezone: "UTC",
    logging_collector: "on",
    log_directory: directories.log,
    // A week of files that overwrite themselves.
    log_filename: "postgresql-%a.log",
    log_truncate_on_rotation: "on",
    log_rotation_age: "1d",
    log_line_prefix: "%m [%p] ",
    // A failed statement is the server's to log; here it could put a value into a file nobody redacts.
    log_min_error_statement: "panic",
    log_min_messages: "log",
    ...extra,
  };
  return [
    "-D",
    directories.data,
    ...Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`]),
  ];
}

/** Only over the socket, and only by whom the kernel names (`peer`): there is no password that could leak. */
export const hbaFile = `local all all peer map=kontor\n`;

/** Which accounts of this host may be the role. */
export function identFile(accounts: readonly string[]): string {
  return accounts.map((account) => `kontor ${quote(account)} ${role}\n`).join("");
}

/** Quoted, a name is never a pattern or a keyword. */
function quote(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
