/**
 * Columns as stored. The migrations 0001_accounts.sql, 0017_projects.sql, 0035_run_tokens_and_traces.sql,
 * 0042_what_a_request_made.sql, 0047_team_invitations.sql, 0048_tokens_that_hide_secrets.sql and
 * 0054_activity_outlives_workspaces.sql describe them.
 */
import type { ColumnType, Generated } from "kysely";
import type { Plan, SandboxTier, TeamRole } from "./roles.ts";

interface InstallationTable {
  singleton: Generated<boolean>;
  id: Generated<string>;
  created_at: Generated<Date>;
  secrets_canary: Buffer | null;
}

export interface UsersTable {
  id: Generated<string>;
  email: string;
  name: string;
  password_hash: string;
  is_operator: Generated<boolean>;
  created_at: Generated<Date>;
}

export interface WorkspacesTable {
  id: Generated<string>;
  kind: "personal" | "team";
  owner_user_id: string | null;
  name: string;
  plan: Generated<Plan>;
  sandbox_tier: Generated<SandboxTier>;
  suspended_at: Date | null;
  /** Time at which the workspace's machines were frozen: 0059_held_workspaces.sql. */
  held_since: ColumnType<Date | null, Date | null | undefined>;
  created_at: Generated<Date>;
}

/** A view: 0052_workspace_payers.sql. */
interface WorkspacePayersView {
  workspace_id: string;
  payer_id: string;
}

interface TeamMembersTable {
  workspace_id: string;
  user_id: string;
  role: TeamRole;
  created_at: Generated<Date>;
}

export interface TeamInvitationsTable {
  id: Generated<string>;
  workspace_id: string;
  email: string;
  role: TeamRole;
  invited_by: string;
  created_at: Date;
  expires_at: Date;
}

export interface SessionsTable {
  id: Generated<string>;
  user_id: string;
  token_hash: string;
  created_at: Generated<Date>;
  expires_at: Date;
  last_seen_at: Generated<Date>;
  user_agent: string | null;
  ip: string | null;
}

export interface ApiTokensTable {
  id: string;
  user_id: string;
  name: string;
  prefix: string;
  token_hash: string;
  scopes: string[] | null;
  class: Generated<"user" | "agent">;
  worker_id: string | null;
  workspace_id: string | null;
  run_id: string | null;
  secrets: Generated<"shown" | "hidden">;
  created_at: Generated<Date>;
  expires_at: Date | null;
  last_used_at: Date | null;
  revoked_at: Date | null;
}

interface ActivityTable {
  id: Generated<string>;
  at: Generated<Date>;
  actor_kind: "user" | "api_token" | "worker" | "system";
  actor_id: string;
  actor_label: string;
  actor_role: string | null;
  action: string;
  target_kind: string;
  target_id: string | null;
  target_label: string | null;
  workspace_id: string | null;
  ip: string | null;
  detail: Json<Record<string, unknown>>;
  person_id: string | null;
  person_email: string | null;
  is_access: Generated<boolean>;
}

interface NotificationsTable {
  id: Generated<string>;
  workspace_id: string;
  kind: string;
  title: string;
  body: string;
  target: Json<{ kind: string; id: string; label: string }>;
  created_at: Generated<Date>;
}

interface NotificationReadsTable {
  notification_id: string;
  user_id: string;
  read_at: Generated<Date>;
}

interface IdempotencyKeysTable {
  caller: string;
  route: string;
  key: string;
  body_hash: string;
  state: "running" | "made" | "done";
  status: number | null;
  headers: ColumnType<Record<string, string> | null, string | null, string | null>;
  body: ColumnType<unknown, string | null, string | null>;
  made: ColumnType<Record<string, unknown>[] | null, null | undefined, null>;
  created_at: Generated<Date>;
  process_id: string;
  expires_at: Date;
}

/**
 * A JSON column with a default. A read parses the value. A write passes JSON text, because pg would send an array as a
 * PostgreSQL array.
 */
type Json<T> = ColumnType<T, string | undefined, string>;

export interface AccountsTables {
  installation: InstallationTable;
  users: UsersTable;
  workspaces: WorkspacesTable;
  workspace_payers: WorkspacePayersView;
  team_members: TeamMembersTable;
  team_invitations: TeamInvitationsTable;
  sessions: SessionsTable;
  api_tokens: ApiTokensTable;
  activity: ActivityTable;
  notifications: NotificationsTable;
  notification_reads: NotificationReadsTable;
  idempotency_keys: IdempotencyKeysTable;
}
