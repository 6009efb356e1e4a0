/** A page with shell blocks, and its treatment by the tests. */
export interface TestedPage {
  file: string;
  /** Templates of sandboxes and images of add-ons that the page uses. */
  templates: readonly string[];
}

/** Pages that run exactly as printed, in the order in which a reader follows them. */
export const asPrinted: readonly TestedPage[] = [
  { file: "README.md", templates: ["debian-12"] },
  { file: "docs/sandbox.md", templates: ["debian-12", "node-22", "code-interpreter"] },
  { file: "docs/platform.md", templates: ["debian-12"] },
  { file: "docs/functions.md", templates: ["node-22"] },
  { file: "docs/addons.md", templates: ["debian-12", "postgres-15", "redis-7"] },
  { file: "docs/backups.md", templates: ["postgres-15"] },
  { file: "docs/agents.md", templates: [] },
  { file: "docs/agents/approvals.md", templates: [] },
  { file: "docs/agents/machines.md", templates: ["debian-12"] },
  { file: "docs/agents/memory.md", templates: [] },
  { file: "docs/agents/triggers.md", templates: [] },
  { file: "docs/agents/workers.md", templates: [] },
];

/** Pages that do not run as printed, with the reason. */
export const notAsPrinted: Readonly<Record<string, string>> = {
  "docs/agents/sign-ins.md": "needs an OAuth provider; runs in server/src/agent/oauth/docs.test.ts",
  "docs/agents/tools.md": "needs an MCP server; runs in server/src/agent/toolsets/docs.test.ts",
  "docs/operating.md": "replaces and removes the installation, and needs a second host",
};
