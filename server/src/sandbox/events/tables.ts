import type { ColumnType, Generated } from "kysely";
import type { EventName, EventOutcome } from "./names.ts";

/** Columns as they are stored; migrations/0005_events.sql explains them. */
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

/** The actor, with its name at that time. */
interface EventActor {
  kind: string;
  id: string;
  label: string;
}

interface SandboxEventCounterTable {
  singleton: Generated<boolean>;
  last: number;
}

export interface EventTables {
  sandbox_events: SandboxEventsTable;
  sandbox_event_counter: SandboxEventCounterTable;
}
