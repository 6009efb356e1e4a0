/** Checks that no schema can do: regions and names of this installation, and domains of other projects. */
import type { App } from "#app.ts";
import { hostname } from "#config.ts";
import type { Db } from "#schema.ts";
import { regionsOf } from "#lib/regions.ts";
import { invalidField } from "../input/schema.ts";
import { domainTaken, nameTaken } from "./errors.ts";
import { isTaken } from "./names.ts";
import { lockName, isDomainOfAnother } from "./store.ts";

/** Returns the region with this code; without a code, the default region. An error names `field`. */
export function requireRegion(
  { config }: Pick<App, "config">,
  code: string | null | undefined,
  field = "region",
): string {
  const regions = regionsOf(config);
  const region = regions.find((known) => known.code === (code ?? regions[0].code));
  if (region) return region.code;
  const known = regions.map((one) => one.code).join(", ");
  throw invalidField(field, `unknown region "${code}"; choose one of: ${known}`);
}

/** Throws if the name is taken. Locks the name, so that it stays free until the transaction ends. */
export async function requireFreeName(tx: Db, name: string): Promise<void> {
  await lockName(tx, name);
  if (await isTaken(tx, name)) throw nameTaken(name);
}

/**
 * Throws for a domain of another project, or of the server itself. `projectId` is null for a project that does not
 * exist yet.
 */
export async function requireDomain(
  { config }: Pick<App, "config">,
  tx: Db,
  domain: string,
  projectId: string | null,
): Promise<void> {
  for (const own of [config.appsDomain, config.previewDomain].map(hostname)) {
    if (domain === own || domain.endsWith(`.${own}`)) {
      throw invalidField(
        "custom_domain",
        `names under ${own} belong to this server; use a domain of your own`,
      );
    }
  }
  if (await isDomainOfAnother(tx, domain, projectId)) throw domainTaken(domain);
}
