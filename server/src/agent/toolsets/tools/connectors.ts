/** MCP servers with sign-in that vendors run for their customers, by slug. */

interface CatalogEntry {
  slug: string;
  name: string;
  description: string;
  url: string;
  /** Scopes to request, if the scopes that the server names by default do not suffice. */
  oauth_scopes?: string;
  /**
   * True if the toolset must have an OAuth client of its own, because the vendor does not support dynamic client
   * registration.
   */
  needs_client?: boolean;
  docs_url: string;
}

export const connectors: readonly CatalogEntry[] = [
  {
    slug: "asana",
    name: "Asana",
    description: "Tasks, projects and goals.",
    url: "https://mcp.asana.com/v2/mcp",
    needs_client: true,
    docs_url: "https://developers.asana.com/docs/using-asanas-mcp-server",
  },
  {
    slug: "atlassian",
    name: "Atlassian",
    description: "Jira issues and Confluence pages.",
    url: "https://mcp.atlassian.com/v1/mcp",
    docs_url: "https://support.atlassian.com/rovo/docs/getting-started-with-the-atlassian-remote-mcp-server/",
  },
  {
    slug: "cloudflare",
    name: "Cloudflare",
    description: "Workers and their bindings: storage, databases, queues.",
    url: "https://bindings.mcp.cloudflare.com/mcp",
    docs_url: "https://developers.cloudflare.com/agents/model-context-protocol/mcp-servers-for-cloudflare/",
  },
  {
    slug: "cloudflare-observability",
    name: "Cloudflare Observability",
    description: "Logs and metrics of Workers.",
    url: "https://observability.mcp.cloudflare.com/mcp",
    docs_url: "https://developers.cloudflare.com/agents/model-context-protocol/mcp-servers-for-cloudflare/",
  },
  {
    slug: "github",
    name: "GitHub",
    description: "Repositories, issues, pull requests and workflows.",
    url: "https://api.githubcopilot.com/mcp/",
    needs_client: true,
    docs_url: "https://github.com/github/github-mcp-server",
  },
  {
    slug: "intercom",
    name: "Intercom",
    description: "Conversations, contacts and help articles.",
    url: "https://mcp.intercom.com/mcp",
    docs_url: "https://developers.intercom.com/docs/guides/mcp",
  },
  {
    slug: "linear",
    name: "Linear",
    description: "Issues, projects and comments.",
    url: "https://mcp.linear.app/mcp",
    docs_url: "https://linear.app/docs/mcp",
  },
  {
    slug: "neon",
    name: "Neon",
    description: "PostgreSQL projects, branches and queries.",
    url: "https://mcp.neon.tech/mcp",
    docs_url: "https://neon.com/docs/ai/neon-mcp-server",
  },
  {
    slug: "notion",
    name: "Notion",
    description: "Pages, databases and comments.",
    url: "https://mcp.notion.com/mcp",
    docs_url: "https://developers.notion.com/docs/mcp",
  },
  {
    slug: "sentry",
    name: "Sentry",
    description: "Issues, events and traces.",
    url: "https://mcp.sentry.dev/mcp",
    docs_url: "https://docs.sentry.io/product/sentry-mcp/",
  },
  {
    slug: "stripe",
    name: "Stripe",
    description: "Customers, payments, invoices and subscriptions.",
    url: "https://mcp.stripe.com",
    docs_url: "https://docs.stripe.com/mcp",
  },
  {
    slug: "supabase",
    name: "Supabase",
    description: "Projects, tables, queries and logs.",
    url: "https://mcp.supabase.com/mcp",
    docs_url: "https://supabase.com/docs/guides/getting-started/mcp",
  },
];
