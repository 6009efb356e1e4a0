/** Settings of the embedded PostgreSQL as text: its command line, and the two files that control who may connect. */

/** Role and database that hold all tables. */
export const role = "kontor";
export const database = "kontor";

export function initdbArguments(dataDirectory: string): string[] {
  return [
    `--pgdata=${dataDirectory}`,
    `--username=${role}`,
    "--encoding=UTF8",
    // PostgreSQL's built-in provider: the bundled ICU is past its end of life, and libc's order depends on the host.
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--locale=C",
    "--auth=reject",
    "--no-instructions",
  ];
}

/** Settings on the command line override postgresql.conf, so each start has exactly these. */
export function postgresArguments(
  directories: { data: string; socket: string; log: string; hba: string; ident: string },
  extra: Record<string, string> = {},
): string[] {
  const settings: Record<string, string> = {
    // Listens only on a unix socket: no network, and the kernel identifies the client.
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
    // Queries read few rows by key, so compiling them or running them in parallel costs more than it gains.
    jit: "off",
    max_parallel_workers_per_gather: "0",
    // Saves the I/O worker processes of PostgreSQL 18; all data fits into the cache.
    io_method: "sync",
    timezone: "UTC",
    log_timezone: "UTC",
    logging_collector: "on",
    log_directory: directories.log,
    // Keeps a week of log files, which overwrite themselves.
    log_filename: "postgresql-%a.log",
    log_truncate_on_rotation: "on",
    log_rotation_age: "1d",
    log_line_prefix: "%m [%p] ",
    // The server logs failed statements itself. PostgreSQL's log is not redacted and could hold values.
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

/** Allows only connections over the socket, by accounts that the kernel identifies (`peer`): no password can leak. */
export const hbaFile = `local all all peer map=kontor\n`;

/** Maps the accounts of this host that may use the role. */
export function identFile(accounts: readonly string[]): string {
  return accounts.map((account) => `kontor ${quote(account)} ${role}\n`).join("");
}

/** A quoted name is never a pattern or a keyword. */
function quote(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
