/** Connectors that vendors run themselves: what a toolset made of one takes from here. */
import { invalidField } from "#agent/errors.ts";
import { connectors } from "./connectors.ts";
import type { Connector, ToolsetCreate } from "../schema.ts";

export const catalog: Connector[] = connectors.map(
  ({ oauth_scopes = null, needs_client = false, ...one }) => ({
    ...one,
    kind: "mcp",
    auth_type: "oauth",
    oauth_scopes,
    needs_client,
  }),
);

/** Its address and way in are the connector's; what else is said stays. */
export function fromCatalog(input: ToolsetCreate): ToolsetCreate & { url: string } {
  const { catalog_slug: slug, url } = input;
  if (slug === undefined || slug === null) {
    if (url === undefined) throw invalidField(["url"], "is required without a catalog_slug");
    return { ...input, url };
  }
  const connector = catalog.find((one) => one.slug === slug);
  if (!connector)
    throw invalidField(["catalog_slug"], "no such connector; GET /v1/agent-toolsets/catalog lists them");
  if (input.kind !== "mcp") throw invalidField(["kind"], "connectors of the catalog are of kind mcp");
  if (url !== undefined && new URL(url).href !== new URL(connector.url).href)
    throw invalidField(["url"], `${slug} is at ${connector.url}; leave the url or the catalog_slug out`);
  if (connector.needs_client && !input.oauth_client_id)
    throw invalidField(
      ["oauth_client_id"],
      `${slug} registers no clients by itself: make one there (${connector.docs_url})`,
    );
  return {
    ...input,
    url: connector.url,
    auth_type: "oauth",
    oauth_scopes: input.oauth_scopes ?? connector.oauth_scopes,
  };
}
