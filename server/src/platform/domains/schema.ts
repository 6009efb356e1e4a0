/** The wire of custom domains. */
import { z } from "zod";
import type { App } from "#app.ts";
import { hostname } from "#config.ts";
import type { DomainRow } from "./store.ts";

export const DomainParams = z.strictObject({ project_id: z.guid() });

export const DomainQuery = z.strictObject({
  workspace: z
    .string()
    .optional()
    .describe("`personal` or a team id; all that the caller reaches where absent."),
});

export const Domain = z
  .object({
    project_id: z.guid(),
    project_name: z.string(),
    hostname: z.string(),
    status: z.enum(["pending", "verified", "failed"]),
    cname_target: z.string().describe("What the name's CNAME record must say."),
    checked_at: z.iso.datetime().nullable(),
    error: z.string().nullable().describe("What was found, and what to set."),
  })
  .meta({ id: "Domain" });
export type Domain = z.output<typeof Domain>;

/** The only way from a row to JSON. */
export function toDomain({ config }: Pick<App, "config">, row: DomainRow): Domain {
  return {
    project_id: row.id,
    project_name: row.name,
    hostname: row.custom_domain,
    status: row.domain_status,
    cname_target: `${row.name}.${hostname(config.appsDomain)}`,
    checked_at: row.domain_checked_at?.toISOString() ?? null,
    error: row.domain_error,
  };
}
