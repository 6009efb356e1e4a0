import { z } from "zod";

/** Schema of the person behind an actor. */
export const Person = z.object({ id: z.guid(), name: z.string(), email: z.string() }).meta({ id: "Person" });

/** Schema of the person behind an actor, or null. */
export const PersonBehind = Person.nullable().describe(
  "Person behind the actor: the user of the session, token or worker. Null for the system, and once the account is " +
    "deleted. Extension.",
);
