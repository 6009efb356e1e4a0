/** Checks names for projects, because projects and functions share a name space. */
import type { Db } from "#schema.ts";
import { isName } from "./store.ts";

export function isNameOfFunction(db: Db, name: string): Promise<boolean> {
  return isName(db, name);
}
