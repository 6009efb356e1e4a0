/** The catalog's connectors. A toolset that names a connector gets its values. */
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

/** Returns the input with the connector's URL and authentication. The other fields stay unchanged. */
export function applyConnector(input: ToolsetCreate): ToolsetCreate & { url: string } {
  const { catalog_slug: slug, url } = input;
  if (slug === undefined || slug === null) {
    if (url === undefined) throw invalidField(["url"], "is required without a catalog_slug");
    return { ...input, url };
  }
  const connector = catalog.find((one) => one.slug === slug);
  if (!connector)
    throw invalidField(["catalog_slug"], "names no connector; GET /v1/agent-toolsets/catalog lists them");
  if (input.kind !== "mcp") throw invalidField(["kind"], "must be mcp for a connector of the catalog");
  if (url !== undefined && new URL(url).href !== new URL(connector.url).href)
    throw invalidField(
      ["url"],
      `must be absent, because ${slug} has the URL ${connector.url}; leave out url or catalog_slug`,
    );
  if (connector.needs_client && !input.oauth_client_id)
    throw invalidField(
      ["oauth_client_id"],
      `is required, because ${slug} does not register clients; register one there ` +
        `(${connector.docs_url})`,
    );
  return {
    ...input,
    url: connector.url,
    auth_type: "oauth",
    oauth_scopes: input.oauth_scopes ?? connector.oauth_scopes,
  };
}
