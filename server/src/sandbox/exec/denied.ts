/** Denied connections of a sandbox's machine while one call runs in it, as the call's `egress_denied`. */
import { z } from "zod";
import type { App } from "#app.ts";
import { maxTargets } from "#machines/denials.ts";

/** Absent where nothing was denied, so that an answer has the fields it always had. */
export const EgressDenied = z
  .array(z.string())
  .max(maxTargets)
  .optional()
  .meta({ example: ["example.com:443"] })
  .describe(
    "Hosts that the egress allowlist denied to this sandbox meanwhile, 20 at most; absent where there are none. PATCH /v1/sandboxes/{id} with `allow_domains` allows hosts. A name without a port was looked up. Extension.",
  );

export interface DeniedTargets extends Disposable {
  field(): { egress_denied?: string[] };
}

export function watchDenials(
  app: Pick<App, "machines">,
  { machine_id: machine }: { machine_id: string | null },
): DeniedTargets {
  const watch = app.machines.denials.watch(machine ?? "");
  return { field: () => deniedField(watch.targets()), [Symbol.dispose]: () => watch.close() };
}

export function deniedField(targets: string[]): { egress_denied?: string[] } {
  return targets.length === 0 ? {} : { egress_denied: targets };
}
