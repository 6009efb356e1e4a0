/** Pipeline that builds and runs deployments on this host. */
import { setTimeout as sleep } from "node:timers/promises";
import { buildAppImage, findAppImage, findEqualAppImage } from "#builds/app-images.ts";
import type { App } from "#app.ts";
import { findRegistryImage, pullAppImage, type PullHooks } from "#builds/pulled-images.ts";
import { describeScan } from "#builds/scan.ts";
import type { Apps } from "#platform/apps/apps.ts";
import { release } from "#platform/apps/release/release.ts";
import type { AppSize } from "#platform/environments/sizes.ts";
import { checkout } from "#platform/git/fetch/checkout.ts";
import { scanAndNotify } from "#platform/images/scan.ts";
import type { Pipeline, Work } from "./pipeline.ts";

/**
 * Interval between checks of the public address. A server that has just started may not accept connections yet, and its
 * apps may be starting.
 */
const retryMs = 500;

/** Scans the image, and returns the result as a log line. */
export async function scanAndDescribe(
  app: Pick<App, "db" | "machines" | "clock">,
  projectId: string,
  tag: string,
): Promise<string> {
  const scan = await scanAndNotify(app, projectId, tag);
  return scan ? describeScan(scan) : "The image was deleted.";
}

function pullHooks({ progress, ...hooks }: Work): PullHooks {
  return { ...hooks, progress: ({ fraction, message }) => progress(fraction, message) };
}

export function hostPipeline(apps: Apps): Pipeline {
  return {
    checkout,
    buildAppImage: (app, request, { progress, ...hooks }) =>
      buildAppImage(app, request, {
        ...hooks,
        progress: ({ fraction, message }) => progress(fraction, message),
      }),
    findRegistryImage: (app, request, work) => findRegistryImage(app, request, pullHooks(work)),
    pullAppImage: (app, request, work) => pullAppImage(app, request, pullHooks(work)),
    findAppImage,
    findEqualImage: (app, projectId, buildKey) => findEqualAppImage(app, projectId, buildKey),
    scanImage: scanAndDescribe,
    release: (_app, { size, ...request }, work) => release(apps, { ...request, size: size as AppSize }, work),
    statusChanged: (_app, environmentId) => apps.routes.refresh(environmentId),
    async proveServed(_app, { id, host_label }, signal) {
      for (;;) {
        try {
          const serving = apps.serving(id);
          if (!serving?.machine) throw new Error("no app serves the environment");
          const { healthCheckPath } = serving.row.run;
          const expected = { machine: serving.machine, signal };
          await apps.front.visit(apps.routes.hostOf(host_label), healthCheckPath, expected);
          return;
        } catch (error) {
          if (signal.aborted) throw error;
          await sleep(retryMs, undefined, { signal });
        }
      }
    },
  };
}
