/** Wire format of memory. */
import { z } from "zod";
import { AgentReference } from "../agents/schema.ts";
import { EndUserIdOrNone } from "../end-users/id.ts";
import type { FactRow } from "./store.ts";

export const keyPattern = "^[a-z0-9_.-]{1,64}$";

const timestamp = z.iso.datetime();

export const MemoryParams = z.strictObject({ agent: AgentReference, end_user_id: EndUserIdOrNone });

export const ForgetQuery = z.strictObject({
  key: z
    .string()
    .regex(new RegExp(keyPattern), { error: "must have 1 to 64 characters of a-z, 0-9, _ . and -" })
    .optional()
    .describe("Key of the fact to delete. Default: all facts."),
});

export const Memory = z
  .object({
    end_user_id: z.string().describe("End user of the facts. `-` stands for runs without an end user."),
    entries: z
      .array(
        z.object({
          key: z.string().describe("Key of the fact: 1 to 64 of a-z, 0-9, _ . and -."),
          value: z.string().describe("Value of the fact, as the agent saved it."),
          created_at: timestamp.describe("Time when the fact was first saved."),
          updated_at: timestamp.describe("Time when the fact was last saved."),
          run_id: z.string().describe("Id of the run that last saved the fact: `run_…`."),
        }),
      )
      .describe("Facts in the order of their keys."),
    total: z.int().describe("Number of facts. `entries` has all of them."),
  })
  .meta({ id: "AgentMemory" });
export type Memory = z.output<typeof Memory>;

export const DeletedFacts = z
  .object({ deleted: z.int().describe("Number of deleted facts.") })
  .meta({ id: "AgentMemoryForgotten" });
export type DeletedFacts = z.output<typeof DeletedFacts>;

export function toMemory(endUserId: string, rows: readonly FactRow[]): Memory {
  const entries = rows.map(({ key, value, created_at, updated_at, run_id }) => ({
    key,
    value,
    created_at: created_at.toISOString(),
    updated_at: updated_at.toISOString(),
    run_id,
  }));
  return { end_user_id: endUserId, entries, total: entries.length };
}
