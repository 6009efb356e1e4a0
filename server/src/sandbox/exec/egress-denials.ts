/** Collects the connections that a sandbox's machine was denied during one call, for `egress_denied`. */
import { z } from "zod";
import type { App } from "#app.ts";
import { maxTargets } from "#machines/denials.ts";

/** Absent if nothing was denied, so that the response keeps its documented fields. */
export const EgressDenied = z
  .array(z.string())
  .max(maxTargets)
  .optional()
  .meta({ example: ["example.com:443"] })
  .describe(
    "Hosts that the egress allowlist denied to this sandbox during the call, at most 20. Absent if there were none. Allow hosts with PATCH /v1/sandboxes/{id} and `allow_domains`. A name without a port was a DNS query. Extension.",
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
