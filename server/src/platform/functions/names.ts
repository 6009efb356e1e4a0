/** One name space over projects and functions: what the other side asks of this one. */
import type { Db } from "#schema.ts";
import { isName } from "./store.ts";

export function isNameOfFunction(db: Db, name: string): Promise<boolean> {
  return isName(db, name);
}
