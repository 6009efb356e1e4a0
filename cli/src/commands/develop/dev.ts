/** `kontor dev`: runs the server on this terminal, and restarts it when a file of its source changes. */
import { dataDirectory, inProduct } from "../../lib/places.ts";
import { runHere } from "../../lib/run.ts";
import { aptStep } from "../../setup/apt.ts";
import { hostLimitsStep } from "../../setup/host-limits.ts";
import { nativeStep } from "../../setup/native.ts";
import { serverPackages } from "../../setup/packages.ts";
import { setUp } from "../../setup/setup.ts";

export async function dev(options: { port?: string; data?: string }): Promise<void> {
  await setUp([aptStep(serverPackages), nativeStep, hostLimitsStep()]);
  const env = {
    KONTOR_LOG_FORMAT: "pretty",
    ...process.env,
    KONTOR_DATA_DIR: dataDirectory(options.data),
    ...(options.port === undefined ? {} : { KONTOR_PORT: options.port }),
  };
  const watched = ["server/src", "runtime/src"].map((folder) => `--watch-path=${inProduct(folder)}`);
  process.exitCode = await runHere([process.execPath, ...watched, inProduct("server/src/main.ts")], { env });
}
