/**
 * `kontor user | team | plan | suspend | unsuspend`: the operator's commands, run beside the server on the same
 * database. A running server sees their changes within two seconds.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { type Command, commands, UsageError } from "#accounts/operator/commands.ts";
import { type Connection, openDatabase } from "#db/db.ts";
import type { Database } from "#schema.ts";
import { ensureEmbedded, stopEmbedded } from "#db/embedded/ensure-embedded.ts";
import { systemClock } from "#lib/clock.ts";
import { DomainError } from "#lib/errors.ts";
import { platformHoldings } from "#platform/api.ts";
import { sandboxHoldings } from "#sandbox/api.ts";
import { type Config, ConfigError, loadConfig } from "./config.ts";

try {
  await main(process.argv.slice(2));
} catch (error) {
  if (!(error instanceof DomainError || error instanceof UsageError || error instanceof ConfigError))
    throw error;
  process.stderr.write(`${error.message}\n`);
  process.exitCode = error instanceof UsageError ? 2 : 1;
}

async function main(words: readonly string[]): Promise<void> {
  const { command, rest } = findCommand(words);
  const { positionals, values } = parse(command, rest);
  if (values.help === true) return void process.stdout.write(`kontor ${command.usage} [--json]\n`);
  if (positionals.length !== command.words) throw new UsageError(`usage: kontor ${command.usage}`);
  await using running = new AsyncDisposableStack();
  const database = openDatabase<Database>(await connect(loadConfig(), running), {
    maxConnections: 2,
    onError: () => {},
  });
  running.defer(() => database.close());
  const { json, help: _help, ...options } = values;
  const holdings = [...platformHoldings, ...sandboxHoldings];
  const app = { db: database.db, clock: systemClock, holdings };
  print(await command.run(app, positionals, options), json === true);
}

function findCommand(words: readonly string[]): { command: Command; rest: string[] } {
  for (const length of [2, 1]) {
    const command = commands[words.slice(0, length).join(" ")];
    if (command) return { command, rest: words.slice(length) };
  }
  const noun = words[0] ?? "";
  const known = Object.entries(commands).filter(([name]) => name.split(" ")[0] === noun);
  const shown = (known.length > 0 ? known : Object.entries(commands)).map(
    ([, { usage }]) => `  kontor ${usage}`,
  );
  throw new UsageError(`usage:\n${shown.join("\n")}`);
}

function parse(command: Command, args: string[]) {
  const own = Object.entries(command.options).map(([name, kind]) => [
    name,
    { type: kind === "flag" ? ("boolean" as const) : ("string" as const) },
  ]);
  const options = {
    ...Object.fromEntries(own),
    json: { type: "boolean" },
    help: { type: "boolean" },
  } as Record<string, { type: "boolean" | "string" }>;
  try {
    const { positionals, values } = parseArgs({ args, options, allowPositionals: true });
    return { positionals, values: values as Record<string, string | boolean | undefined> };
  } catch (error) {
    throw new UsageError(`${(error as Error).message}\nusage: kontor ${command.usage}`);
  }
}

/** Connects to the database. If the embedded PostgreSQL does not run, starts it, and stops it at the end. */
async function connect(config: Config, running: AsyncDisposableStack): Promise<Connection> {
  if (config.databaseUrl !== null) return { url: config.databaseUrl };
  if (!existsSync(join(config.dataDir, "postgres"))) {
    throw new UsageError(
      `there is no installation in ${config.dataDir}: start the server once, or set KONTOR_DATA_DIR`,
    );
  }
  const { connection, adopted } = await ensureEmbedded(config.dataDir);
  if (!adopted) running.defer(() => stopEmbedded(config.dataDir).then(() => undefined));
  return connection;
}

/** Prints a record as lines of name and value, and a list as a table, or either as JSON for programs. */
function print(result: unknown, json: boolean): void {
  if (json) return void process.stdout.write(`${JSON.stringify(result, null, 2)}\n`);
  const rows = (Array.isArray(result) ? result : [result]) as Record<string, unknown>[];
  const [first] = rows;
  if (first === undefined) return void process.stdout.write("none\n");
  const table = Array.isArray(result)
    ? [Object.keys(first), ...rows.map((row) => Object.values(row).map(String))]
    : Object.entries(first).map(([name, value]) => [name, String(value)]);
  const widths = table[0]!.map((_, column) => Math.max(...table.map((row) => row[column]!.length)));
  for (const row of table) {
    process.stdout.write(
      `${row
        .map((cell, column) => cell.padEnd(widths[column]!))
        .join("  ")
        .trimEnd()}\n`,
    );
  }
}
