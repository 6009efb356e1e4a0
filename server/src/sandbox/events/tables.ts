import type { ColumnType, Generated } from "kysely";
import type { EventName, EventOutcome } from "./names.ts";

/** Columns as they are stored; see migrations/0005_events.sql for what they mean. */
export interface SandboxEventsTable {
  seq: Generated<number>;
  position: number | null;
  workspace_id: string;
  event: EventName;
  sandbox_id: string | null;
  at: Date;
  outcome: EventOutcome;
  summary: string | null;
  detail: ColumnType<Record<string, unknown>, string, never>;
  actor: ColumnType<EventActor, string, never>;
}

/** Who did it, as it was called then. */
export interface EventActor {
  kind: string;
  id: string;
  label: string;
}

export interface SandboxEventCounterTable {
  singleton: Generated<boolean>;
  last: number;
}

export interface EventTables {
  sandbox_events: SandboxEventsTable;
  sandbox_event_counter: SandboxEventCounterTable;
}
