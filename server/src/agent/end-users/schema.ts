/** The wire of end users. */
import { z } from "zod";
import { AgentReference } from "../agents/schema.ts";
import { EndUserId } from "./id.ts";

export const EndUserParams = z.strictObject({ agent: AgentReference, end_user_id: EndUserId });

export const Erased = z
  .object({
    end_user_id: z.string(),
    sessions: z.int(),
    vms_destroyed: z.int().describe("Machines that end now: they are gone within moments."),
    memory_entries: z.int(),
    connections: z.int(),
    triggers: z.int().describe("Deleted schedules and webhooks that had this end user."),
  })
  .meta({ id: "AgentEndUserErased" });
export type Erased = z.output<typeof Erased>;
