/** The wire of sessions. */
import { z } from "zod";
import { AgentReference } from "../agents/schema.ts";
import { pageQuery } from "../cursor.ts";
import { EndUserId } from "../end-users/id.ts";
import { type Machine, machineStatuses } from "../vm/view.ts";
import { type Message, withoutThoughts } from "../models/messages.ts";
import type { SaidMessage, SessionRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const SessionParams = z.strictObject({ agent: AgentReference, session_id: z.string().max(64) });
export const SessionQuery = z.strictObject({
  end_user_id: EndUserId.optional(),
  status: z
    .enum(["idle", "busy", "ended", "live"])
    .optional()
    .describe("`live` matches idle and busy sessions, which count against the plan."),
  ...pageQuery,
});
export type SessionQuery = z.output<typeof SessionQuery>;

export const Session = z
  .object({
    id: z.string(),
    agent_id: z.string(),
    end_user_id: z.string().nullable(),
    version: z
      .int()
      .nullable()
      .describe("Version that the session is pinned to. Null if it has ended and the version was deleted."),
    status: z.enum(["idle", "busy", "ended"]),
    active_run_id: z.string().nullable(),
    created_at: timestamp,
    last_used_at: timestamp,
    ended_at: timestamp.nullable(),
    ephemeral: z.boolean().describe("True for a session that ends with its run."),
    ends_when_idle_minutes: z
      .int()
      .describe("Minutes without a run after which the session ends: `session.idle_minutes` of its version."),
    vm: z
      .object({ sandbox_id: z.string().nullable(), status: z.enum(machineStatuses) })
      .nullable()
      .describe("Its machine, which is made when a tool first needs one. Null where its version has none."),
  })
  .meta({ id: "AgentSession" });
export type Session = z.output<typeof Session>;
export const SessionList = z
  .object({
    items: z.array(Session),
    next_cursor: z.string().nullable().describe("Cursor of the next page. Null on the last page."),
  })
  .meta({ id: "AgentSessionList" });
export type SessionList = z.output<typeof SessionList>;

export const MessageQuery = z.strictObject({
  end_user_id: EndUserId.optional().describe(
    "End user of the session. A session of another end user returns 404.",
  ),
  after: z.int().min(0).max(2_147_483_647).default(0).describe("`next_after` of the previous page."),
  limit: z.int().min(1).max(100).default(50),
});
export type MessageQuery = z.output<typeof MessageQuery>;

export const SessionMessage = z
  .object({
    seq: z.int(),
    run_id: z
      .string()
      .nullable()
      .describe("Run that added the message. Null for history given at the start of the session."),
    kind: z
      .enum(["seed", "input", "answer", "repair", "tools", "summary"])
      .describe(
        "Kind of message. `tools` has the complete results of tool calls, as sent to the model. `summary` replaces older messages in what the model gets.",
      ),
    role: z.string(),
    content: z.unknown().describe("Text or parts, in the format sent to models."),
    summarizes_to: z
      .int()
      .nullable()
      .describe("`seq` of the last message that a summary covers. Null for other messages."),
  })
  .meta({ id: "AgentSessionMessage" });
export const MessageList = z
  .object({
    items: z.array(SessionMessage),
    next_after: z.int().nullable().describe("`after` of the next page. Null on the last page."),
  })
  .meta({ id: "AgentSessionMessageList" });
export type MessageList = z.output<typeof MessageList>;

/** Converts a message to JSON, without the model's reasoning, which providers encrypt. */
export function toMessage({ seq, run_id, kind, message }: SaidMessage): MessageList["items"][number] {
  const { role, content } = withoutThoughts(message as Message);
  const summarizes_to = kind === "summary" ? (message as { through: number }).through : null;
  return { seq, run_id, kind, role, content, summarizes_to };
}

/** The only way from a row to JSON; whether it is busy is a matter of its runs. */
export function toSession(
  row: SessionRow,
  activeRunId: string | undefined,
  machine: Machine | null | undefined,
): Session {
  const living = activeRunId === undefined ? "idle" : "busy";
  return {
    id: row.id,
    agent_id: row.agent_id,
    end_user_id: row.end_user_id,
    version: row.version,
    status: row.ended_at ? "ended" : living,
    active_run_id: activeRunId ?? null,
    created_at: row.created_at.toISOString(),
    last_used_at: row.last_used_at.toISOString(),
    ended_at: row.ended_at?.toISOString() ?? null,
    ephemeral: row.is_ephemeral,
    ends_when_idle_minutes: row.idle_minutes,
    vm: machine ?? null,
  };
}
