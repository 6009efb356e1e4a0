/** What a schema cannot know: this installation's regions and names, and other projects' domains. */
import type { App } from "#app.ts";
import { hostname } from "#config.ts";
import type { Db } from "#schema.ts";
import { regionsOf } from "#lib/regions.ts";
import { invalidField } from "../input/schema.ts";
import { domainTaken, nameTaken } from "./errors.ts";
import { isTaken } from "./names.ts";
import { hold, isDomainOfAnother } from "./store.ts";

/** The default one where none is named; `field` is what an error names. */
export function requireRegion(
  { config }: Pick<App, "config">,
  code: string | null | undefined,
  field = "region",
): string {
  const regions = regionsOf(config);
  const region = regions.find((known) => known.code === (code ?? regions[0].code));
  if (region) return region.code;
  const known = regions.map((one) => one.code).join(", ");
  throw invalidField(field, `unknown region "${code}"; known: ${known}`);
}

/** It stays free for this transaction. */
export async function requireFreeName(tx: Db, name: string): Promise<void> {
  await hold(tx, name);
  if (await isTaken(tx, name)) throw nameTaken(name);
}

/** Serves no other project, and is none of our own names. `projectId` null: of a project that is not there yet. */
export async function requireDomain(
  { config }: Pick<App, "config">,
  tx: Db,
  domain: string,
  projectId: string | null,
): Promise<void> {
  for (const own of [config.appsDomain, config.previewDomain].map(hostname)) {
    if (domain === own || domain.endsWith(`.${own}`)) {
      throw invalidField("custom_domain", `names under ${own} are given by this server`);
    }
  }
  if (await isDomainOfAnother(tx, domain, projectId)) throw domainTaken(domain);
}
