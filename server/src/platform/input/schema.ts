/**
 * A field of the body that does not fit what a schema cannot know: this installation, or what is stored. The caller gets
 * the same 422 as for a field that does not fit its schema, with the field in `loc`.
 */
import { InvalidInput } from "#http/problems.ts";

/** `why` follows the field's name: "is for an https repository". */
export function invalidField(field: string | readonly string[], why: string): InvalidInput {
  const path = typeof field === "string" ? [field] : [...field];
  return new InvalidInput([
    { place: "body", path, type: "value_error", message: `Value error, ${why}`, plain: why },
  ]);
}
