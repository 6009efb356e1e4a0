/** Wire format of end users. */
import { z } from "zod";
import { AgentReference } from "../agents/schema.ts";
import { EndUserId } from "./id.ts";

export const EndUserParams = z.strictObject({
  agent: AgentReference,
  end_user_id: EndUserId.describe(
    "Id of the end user in your system: 1 to 128 of A-Z, a-z, 0-9, . _ : @ and -.",
  ),
});

export const EndUserErasure = z
  .object({
    end_user_id: z.string().describe("Id of the erased end user."),
    sessions: z.int().describe("Number of deleted sessions."),
    vms_destroyed: z.int().describe("Number of machines that end. They are gone within moments."),
    memory_entries: z.int().describe("Number of deleted facts."),
    connections: z.int().describe("Number of deleted connections to toolsets."),
    triggers: z.int().describe("Number of deleted schedules and webhooks of this end user."),
  })
  .meta({ id: "AgentEndUserErased" });
export type EndUserErasure = z.output<typeof EndUserErasure>;
