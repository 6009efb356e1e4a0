/** Wire schemas of custom domains. */
import { z } from "zod";
import type { App } from "#app.ts";
import { hostname } from "#config.ts";
import { ProjectId } from "../input/schema.ts";
import { CustomDomain } from "../projects/schema.ts";
import type { DomainRow } from "./store.ts";

export const DomainParams = z.strictObject({ project_id: ProjectId });

export const DomainQuery = z.strictObject({
  workspace: z
    .string()
    .optional()
    .describe("`personal` or a team id. Default: all workspaces that the caller reaches."),
});

export const Domain = z
  .object({
    project_id: ProjectId,
    project_name: z.string().describe("Name of the project, such as `shop`."),
    hostname: CustomDomain.shape.hostname,
    status: CustomDomain.shape.status,
    cname_target: z.string().describe("Host name that the domain's CNAME record must name."),
    checked_at: CustomDomain.shape.checked_at,
    error: z
      .string()
      .nullable()
      .describe("Problem that the last DNS check found, and the record to set. Null if none."),
  })
  .meta({ id: "Domain" });
export type Domain = z.output<typeof Domain>;

/** The only conversion from a row to JSON. */
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
