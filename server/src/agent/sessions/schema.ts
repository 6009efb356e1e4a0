/** Wire format of sessions. */
import { z } from "zod";
import { AgentReference } from "../agents/schema.ts";
import { pageQuery } from "../cursor.ts";
import { EndUserId } from "../end-users/id.ts";
import { type Machine, machineStatuses } from "../vm/view.ts";
import { type Message, withoutReasoning } from "../models/messages.ts";
import type { StoredMessage, SessionRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const SessionParams = z.strictObject({
  agent: AgentReference,
  session_id: z.string().max(64).describe("Id of the session: `ses_…`."),
});
export const SessionQuery = z.strictObject({
  end_user_id: EndUserId.optional().describe("End user of the sessions. Default: all."),
  status: z
    .enum(["idle", "busy", "ended", "live"])
    .optional()
    .describe(
      "State of the sessions. `live` matches idle and busy sessions, which count against the plan. Default: all.",
    ),
  ...pageQuery,
});
export type SessionQuery = z.output<typeof SessionQuery>;

export const Session = z
  .object({
    id: z.string().describe("Id of the session: `ses_…`."),
    agent_id: z.string().describe("Id of the agent: `agt_…`."),
    end_user_id: z
      .string()
      .nullable()
      .describe("End user of the session, fixed when it is created. Null if it has none."),
    version: z
      .int()
      .nullable()
      .describe("Version that the session is pinned to. Null if it has ended and the version was deleted."),
    status: z
      .enum(["idle", "busy", "ended"])
      .describe("State of the session; `busy` while a run is queued, runs, or waits for a person."),
    active_run_id: z.string().nullable().describe("Id of the active run: `run_…`. Null if no run is active."),
    created_at: timestamp.describe("Time when the session was created."),
    last_used_at: timestamp.describe("Time of the last input."),
    ended_at: timestamp.nullable().describe("Time when the session ended. Null while it is live."),
    ephemeral: z.boolean().describe("True for a session that ends with its run."),
    ends_when_idle_minutes: z
      .int()
      .describe("Minutes without a run after which the session ends: `session.idle_minutes` of its version."),
    vm: z
      .object({
        sandbox_id: z
          .string()
          .nullable()
          .describe("Id of the machine's sandbox: `sbx_…`. Null until the machine is made."),
        status: z
          .enum(machineStatuses)
          .describe(
            "State of the machine: `none` until it is made, `parked` while it is paused to disk, `lost` if it is gone.",
          ),
      })
      .nullable()
      .describe(
        "Machine of the session, made when a tool first needs it. Null if the version has no machine.",
      ),
  })
  .meta({ id: "AgentSession" });
export type Session = z.output<typeof Session>;
export const SessionList = z
  .object({
    items: z.array(Session).describe("Sessions of this page, newest first."),
    next_cursor: z.string().nullable().describe("Cursor of the next page. Null on the last page."),
  })
  .meta({ id: "AgentSessionList" });
export type SessionList = z.output<typeof SessionList>;

export const MessageQuery = z.strictObject({
  end_user_id: EndUserId.optional().describe(
    "End user of the session. A session of another end user returns 404.",
  ),
  after: z
    .int()
    .min(0)
    .max(2_147_483_647)
    .default(0)
    .describe("`next_after` of the previous page. Default 0, the first page."),
  limit: z.int().min(1).max(100).default(50).describe("Messages per page, from 1 to 100. Default 50."),
});
export type MessageQuery = z.output<typeof MessageQuery>;

const SessionMessage = z
  .object({
    seq: z.int().describe("Number of the message in its session, from 1 on."),
    run_id: z
      .string()
      .nullable()
      .describe("Run that added the message. Null for history given at the start of the session."),
    kind: z
      .enum(["seed", "input", "answer", "repair", "tools", "summary"])
      .describe(
        "Kind of message. `tools` has the complete results of tool calls, as sent to the model. `summary` replaces older messages in the prompt.",
      ),
    role: z.string().describe("Author of the message: `user`, `assistant` or `tool`."),
    content: z.unknown().describe("Text or parts, in the format sent to models."),
    summarizes_to: z
      .int()
      .nullable()
      .describe("`seq` of the last message that a summary covers. Null for other messages."),
  })
  .meta({ id: "AgentSessionMessage" });
export const MessageList = z
  .object({
    items: z.array(SessionMessage).describe("Messages of this page, oldest first."),
    next_after: z.int().nullable().describe("`after` of the next page. Null on the last page."),
  })
  .meta({ id: "AgentSessionMessageList" });
export type MessageList = z.output<typeof MessageList>;

/** Converts a message to JSON, without the model's reasoning, which providers encrypt. */
export function toMessage({ seq, run_id, kind, message }: StoredMessage): MessageList["items"][number] {
  const { role, content } = withoutReasoning(message as Message);
  const summarizes_to = kind === "summary" ? (message as { through: number }).through : null;
  return { seq, run_id, kind, role, content, summarizes_to };
}

/** Converts a row to the JSON of every response. The status depends on the session's runs. */
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
