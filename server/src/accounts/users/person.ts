import { z } from "zod";

/** Schema of the person behind an actor. */
const Person = z
  .object({
    id: z.guid().describe("Id (UUID) of the account."),
    name: z.string().describe("Display name of the person."),
    email: z.string().describe("E-mail address of the account, in lower case."),
  })
  .meta({ id: "Person" });

/** Schema of the person behind an actor, or null. */
export const PersonBehind = Person.nullable().describe(
  "Person behind the actor: the user of the session, token or worker. Null for the system, and once the account is " +
    "deleted. Extension.",
);
