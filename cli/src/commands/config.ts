/** `kontor config`: every setting with its value, its source and its allowed values; secrets are hidden. */
import { describeConfig, loadConfig, type Config } from "@kontor/server/config.ts";
import { Failure } from "../lib/failure.ts";
import { withRunningSettings } from "../serve/running-settings.ts";

export function config(options: { data?: string; json?: boolean }): void {
  const rows = describeConfig(readConfig(options));
  if (options.json) {
    process.stdout.write(`${JSON.stringify(rows, null, 2)}\n`);
    return;
  }
  let group = "";
  for (const row of rows) {
    if (row.group !== group) process.stdout.write(`\n[${(group = row.group)}]\n`);
    process.stdout.write(
      `${row.name} = ${row.value}  (${row.source})\n    ${row.doc} ${row.env}: ${row.expected}.\n`,
    );
  }
}

/** Returns the configuration that a server with this data directory would have. `port` is the value of the flag. */
export function readConfig({
  data,
  port,
  env = process.env,
}: {
  data?: string;
  port?: string;
  env?: NodeJS.ProcessEnv;
}): Config {
  try {
    return loadConfig({ env, dataDir: data, overrides: port === undefined ? {} : { port } });
  } catch (error) {
    throw new Failure("The configuration is invalid.", { hint: (error as Error).message });
  }
}

/**
 * Returns the configuration of the data directory's running server, or else the configuration that a server would have.
 */
export function readRunningConfig(options: { data?: string }): Config {
  const { dataDir } = readConfig(options);
  return readConfig({ data: dataDir, env: withRunningSettings(dataDir) });
}
