/** Parameters and fields that many operations share, and the error for a body field that no schema can check. */
import { z } from "zod";
import { InvalidInput } from "#http/input/input-problems.ts";

export const ProjectId = z.guid().describe("Id (UUID) of the project.");
export const EnvironmentId = z.guid().describe("Id (UUID) of the environment.");

/** Query parameters of a list that is returned in pages. */
export const pageQuery = {
  skip: z.int().min(0).default(0).describe("Number of items to skip from the start of the list. Default: 0."),
  limit: z
    .int()
    .min(1)
    .max(100)
    .default(20)
    .describe("Largest number of items to return, 1 to 100. Default: 20."),
};

/** Fields of a page in addition to its items. */
export const pageFields = {
  total: z.int().describe("Number of items on all pages."),
  skip: z.int().describe("Value of `skip` in the request."),
  limit: z.int().describe("Value of `limit` in the request."),
};

/**
 * Error for a field of the body that no schema can check, because the check needs the set-up of this installation or
 * stored rows. The response is the same 422 as for a failed schema, with the field in `loc`. The text `why` follows the
 * field's name: "is for an https repository".
 */
export function invalidField(field: string | readonly string[], why: string): InvalidInput {
  const path = typeof field === "string" ? [field] : [...field];
  return new InvalidInput([
    { place: "body", path, type: "value_error", message: `Value error, ${why}`, plain: why },
  ]);
}
