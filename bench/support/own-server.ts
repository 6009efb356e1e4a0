/**
 * A separate server for a benchmark that needs another configuration, a single core or a kill -9. The server reuses the
 * images of the runner's server, so that no image is built twice.
 */
import { chmodSync, mkdirSync, mkdtempSync } from "node:fs";
import { dirname, join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";
import { freePort } from "../../cli/src/serve/port.ts";
import { Server } from "../../e2e/support/server.ts";
import { Api } from "./api.ts";
import type { BenchContext } from "./contract.ts";
import { imagesOf } from "./images.ts";

/** Settings that disable the warm pool. */
export const withoutPool = { KONTOR_POOL_SIZE: "0", KONTOR_POOL_MAX: "0" };

/** Runs `work` with a server that has these settings, and removes the server afterwards, also after an error. */
export async function withOwnServer(
  context: BenchContext,
  env: Record<string, string>,
  work: (server: Server, api: Api) => Promise<void>,
): Promise<void> {
  context.progress("starting a server of its own");
  const dataDir = mkdtempSync(join(dirname(context.dataDirectory), "kontor-bench-own-"));
  const server = new Server({ dataDir, port: await freePort(), env });
  try {
    // PostgreSQL's account must be able to enter the directory.
    chmodSync(dataDir, 0o711);
    const images = imagesOf(dataDir);
    mkdirSync(dirname(images), { recursive: true, mode: 0o700 });
    await run(["cp", "--archive", "--link", imagesOf(context.dataDirectory), images]);
    await server.start();
    await work(server, new Api(server));
  } finally {
    await server.destroy();
  }
}
