/**
 * The tables of the database, as TypeScript sees them. Each folder that owns tables exports one interface of them from
 * its `tables.ts` (`table name → columns`); this type puts them together. A `tables.ts` imports plain types only, so
 * that every folder may import this module.
 */
import type { Kysely, Transaction as KyselyTransaction } from "kysely";
import type { AccountsTables } from "#accounts/tables.ts";
import type { AgentApprovalTables } from "#agent/approvals/tables.ts";
import type { AgentTables } from "#agent/agents/tables.ts";
import type { ModelCredentialTables } from "#agent/credentials/tables.ts";
import type { AgentCallTables } from "#agent/calls/tables.ts";
import type { AgentMemoryTables } from "#agent/memory/tables.ts";
import type { AgentConnectionTables } from "#agent/oauth/tables.ts";
import type { AgentRunTables } from "#agent/runs/tables.ts";
import type { AgentSessionTables } from "#agent/sessions/tables.ts";
import type { AgentScheduleTables } from "#agent/schedules/tables.ts";
import type { AgentToolsetTables } from "#agent/toolsets/tables.ts";
import type { AgentMachineTables } from "#agent/vm/tables.ts";
import type { AgentWebhookTables } from "#agent/webhooks/tables.ts";
import type { BuildTables } from "#builds/tables.ts";
import type { JobsTables } from "#jobs/tables.ts";
import type { MachinesTables } from "#machines/tables.ts";
import type { AddonTables } from "#platform/addons/tables.ts";
import type { AppTables } from "#platform/apps/tables.ts";
import type { BackupTables } from "#platform/backups/tables.ts";
import type { DeploymentTables } from "#platform/deployments/tables.ts";
import type { EnvironmentTables } from "#platform/environments/tables.ts";
import type { FunctionTables } from "#platform/functions/tables.ts";
import type { GitTables } from "#platform/git/tables.ts";
import type { GroupTables } from "#platform/groups/tables.ts";
import type { MetricTables } from "#platform/metrics/tables.ts";
import type { ProjectTables } from "#platform/projects/tables.ts";
import type { CommandTables } from "#sandbox/commands/tables.ts";
import type { EventTables } from "#sandbox/events/tables.ts";
import type { SandboxTables } from "#sandbox/sandboxes/tables.ts";
import type { SnapshotTables } from "#sandbox/snapshots/tables.ts";
import type { VolumeTables } from "#sandbox/volumes/tables.ts";
import type { TemplateTables } from "#sandbox/templates/tables.ts";
import type { WebhookTables } from "#sandbox/webhooks/tables.ts";

export interface Database
  extends
    AccountsTables,
    BuildTables,
    JobsTables,
    MachinesTables,
    GroupTables,
    ProjectTables,
    EnvironmentTables,
    DeploymentTables,
    GitTables,
    AppTables,
    FunctionTables,
    AddonTables,
    BackupTables,
    MetricTables,
    SandboxTables,
    TemplateTables,
    SnapshotTables,
    CommandTables,
    EventTables,
    VolumeTables,
    WebhookTables,
    AgentTables,
    AgentSessionTables,
    AgentRunTables,
    AgentCallTables,
    AgentMemoryTables,
    AgentApprovalTables,
    AgentToolsetTables,
    AgentMachineTables,
    AgentScheduleTables,
    AgentWebhookTables,
    AgentConnectionTables,
    ModelCredentialTables {}

/** The database or a transaction of it. A function with a `Db` runs in the transaction that the caller passes. */
export type Db = Kysely<Database>;
export type Transaction = KyselyTransaction<Database>;
