/**
 * Slugs: the first label of a project's address. Projects and functions share a name space. Reserved slugs are hosts of
 * the server itself, or would make an app look like a page of the server.
 */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { isNameOfFunction } from "../functions/names.ts";
import { isNameOfProject } from "./store.ts";

/** Matches a slug. A slug has no two hyphens in a row, because `a--b` is the environment `b` of project `a`. */
export const slugPattern = /^[a-z](?:[a-z0-9]|-(?!-)){1,38}[a-z0-9]$/;

const reserved = new Set(
  [
    [
      "fn",
      "sbx",
      "git",
      "api",
      "www",
      "files",
      "app",
      "apps",
      "preview",
      "previews",
      "static",
      "assets",
      "cdn",
    ],
    [
      "console",
      "dashboard",
      "admin",
      "operator",
      "kontor",
      "account",
      "accounts",
      "auth",
      "login",
      "oauth",
      "sso",
    ],
    ["docs", "status", "support", "help", "billing", "security", "abuse", "blog"],
    ["mail", "smtp", "imap", "autoconfig", "autodiscover", "wpad", "isatap", "ns1", "ns2", "ftp"],
    ["localhost", "local", "internal", "metrics", "hooks", "webhooks", "registry", "acme-challenge"],
  ].flat(),
);

export function isReserved(name: string): boolean {
  return reserved.has(name);
}

export async function isTaken(db: Db, name: string): Promise<boolean> {
  return (await isNameOfProject(db, name)) || (await isNameOfFunction(db, name));
}

export interface NameCheck {
  name: string;
  available: boolean;
  reason: "taken" | "reserved" | "invalid" | null;
}

/** Returns whether a project or a function could get the name now. */
export async function checkName({ db }: Pick<App, "db">, name: string): Promise<NameCheck> {
  const reason = !slugPattern.test(name)
    ? "invalid"
    : isReserved(name)
      ? "reserved"
      : (await isTaken(db, name))
        ? "taken"
        : null;
  return { name, available: reason === null, reason };
}
