/** The real parts of a deployment. */
import { setTimeout as sleep } from "node:timers/promises";
import { buildAppImage, findAppImage, findEqualAppImage } from "#builds/app-images.ts";
import { describeScan, scanImage } from "#builds/scan.ts";
import type { Apps } from "../apps/apps.ts";
import { release } from "../apps/release.ts";
import type { AppSize } from "../environments/sizes.ts";
import { checkout } from "../git/checkout.ts";
import type { Pipeline } from "./pipeline.ts";

/** A server that has just begun takes no visitors yet, and its apps may be starting: they are asked again. */
const askAgainMs = 500;

export function partsOf(apps: Apps): Pipeline {
  return {
    checkout,
    buildAppImage,
    findAppImage,
    findEqualImage: (app, projectId, buildKey) => findEqualAppImage(app, projectId, buildKey),
    async scanImage(app, projectId, tag) {
      const scan = await scanImage(app, projectId, tag);
      return scan ? describeScan(scan) : "The image is gone.";
    },
    release: (_app, { size, ...request }, work) => release(apps, { ...request, size: size as AppSize }, work),
    async proveServed(_app, { id, host_label }, signal) {
      for (;;) {
        try {
          const serving = apps.serving(id);
          if (!serving?.machine) throw new Error("nothing serves it");
          const { healthCheckPath } = serving.row.run;
          const expected = { machine: serving.machine, signal };
          await apps.front.visit(apps.routes.hostOf(host_label), healthCheckPath, expected);
          return;
        } catch (error) {
          if (signal.aborted) throw error;
          await sleep(askAgainMs, undefined, { signal });
        }
      }
    },
  };
}
