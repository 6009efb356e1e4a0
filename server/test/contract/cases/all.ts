/** The cases of the three documents, by operation. */
import { agentApprovalCases } from "./agent-approvals.ts";
import { agentMcpCases } from "./agent-mcp.ts";
import { agentMemoryCases } from "./agent-memory.ts";
import { agentTriggerCases } from "./agent-triggers.ts";
import { agentCases } from "./agent.ts";
import { backupCases } from "./backups.ts";
import type { Case } from "./case.ts";
import { functionCases } from "./functions.ts";
import { platformCases } from "./platform.ts";
import { sandboxCases } from "./sandbox.ts";

export const cases: Readonly<Record<string, Case>> = {
  ...platformCases,
  ...backupCases,
  ...functionCases,
  ...sandboxCases,
  ...agentCases,
  ...agentMcpCases,
  ...agentMemoryCases,
  ...agentApprovalCases,
  ...agentTriggerCases,
};
