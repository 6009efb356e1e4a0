/** Builds the configured templates at start, and fills the pools of warm machines. */
import type { App } from "#app.ts";
import { poolFloors } from "#machines/placement/pool.ts";
import { shapeOf } from "#sandbox/sandboxes/limits/sizes.ts";

/** Builds templates one after the other, those with a pool first. Fills each pool after its template. */
export async function prepareTemplates({
  config,
  machines,
  log,
}: Pick<App, "config" | "machines" | "log">): Promise<void> {
  const { images, host, pool } = machines;
  const floors = poolFloors(config, (await host.facts()).memoryBytes);
  const wanted = config.prepareTemplates ?? host.imageNames();
  for (const name of new Set([...floors.keys(), ...wanted])) {
    try {
      await images.ensure(name);
    } catch (error) {
      log.error({ error, template: name }, "a template could not be built; a request for it tries again");
    }
    const floor = floors.get(name);
    if (floor !== undefined) pool.keep(shapeOf(name, "small", config.machineDiskGb), floor);
  }
}
