/** Checks that no schema can make: regions and names of this installation, and domains of other projects. */
import type { App } from "#app.ts";
import { hostname } from "#config.ts";
import type { Db } from "#schema.ts";
import { regionsOf } from "#lib/regions.ts";
import { invalidField } from "../input/schema.ts";
import { domainTaken, nameTaken } from "./errors.ts";
import { isTaken } from "./names.ts";
import { lockName, isDomainOfAnother } from "./store.ts";

/** Returns the region, or the default region without a code. `field` is the field that an error names. */
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

/** Locks the name, which stays free until the transaction ends. */
export async function requireFreeName(tx: Db, name: string): Promise<void> {
  await lockName(tx, name);
  if (await isTaken(tx, name)) throw nameTaken(name);
}

/**
 * Refuses a domain of another project, and the server's own names. `projectId` is null for a project that does not
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
