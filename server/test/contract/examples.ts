/**
 * Makes a recorded example stable. A kind of resource has the same id in every example, times start on one morning, and
 * addresses are those of a public installation. Placeholder text replaces secrets.
 */
import { createHash } from "node:crypto";
import type { OutputUnit } from "@cfworker/json-schema";
import type { OperationExample } from "#http/documents/openapi.ts";
import type { Call } from "./cases/case.ts";
import type { Operation } from "./operations.ts";
import type { Caller } from "./world.ts";

interface RecordedExample {
  operation: Operation;
  call: Call;
  owner: Caller;
}

const uuid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
const uuids = new RegExp(`\\b${uuid}\\b`, "g");
/** Matches an id after its key. The key before an id gives its best name: `"project_id":"…"`. */
const keyedUuids = new RegExp(`"(\\w+)":"(${uuid})"`, "g");
/** Matches ids of `newId`: a prefix and 20 characters. */
const prefixed = /\b([a-z]{2,5}_)([a-z0-9]{20})\b/g;
const times = /\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;
const morning = Date.parse("2026-11-02T09:30:00Z");

const fake = (length: number): string => "EXAMPLE".repeat(10).slice(0, length);

const replacements: readonly (readonly [RegExp, string])[] = [
  [/\bsvc_[A-Za-z0-9]{40}\b/g, `svc_${fake(40)}`],
  [/"prefix":"svc_\w{4}"/g, `"prefix":"svc_${fake(4)}"`],
  [/\bwhsec_[A-Za-z0-9+/=]{20,}/g, `whsec_${fake(43)}=`],
  [/\bfnk_[A-Za-z0-9]{20,}\b/g, `fnk_${fake(40)}`],
  [/"secret":"[A-Za-z0-9]{40}"/g, `"secret":"${fake(40)}"`],
  [/"secret_hint":"…[^"]{4}"/g, `"secret_hint":"…${fake(4)}"`],
  [/"api_key_hint":"fnk_\w{4}"/g, `"api_key_hint":"fnk_${fake(4)}"`],
  [/(postgresql|rediss?):\/\/kontor:\w+@/g, `$1://kontor:${fake(32)}@`],
  [/"token_hash":"[0-9a-f]{64}"/g, `"token_hash":"${createHash("sha256").update(fake(40)).digest("hex")}"`],
  [/svc_exp=\d+&svc_sig=[\w-]+/g, `svc_exp=${morning / 1000 + 600}&svc_sig=${fake(43)}`],
  [/"as_of_unix":\d+/g, `"as_of_unix":${morning / 1000}`],
  [/"next_cursor":"[^"]+"/g, `"next_cursor":"${fake(32)}"`],
  [/\/connect\/[\w-]{20,}/g, `/connect/${fake(32)}`],
  [/[a-z0-9]{20}(?=\.sbx\.)/g, characters("preview", 20)],
  [/http:\/\/127\.0\.0\.1:8080/g, "https://kontor.example.com"],
  [/\b(apps|sbx|fn)\.localhost(?::8443)?/g, "$1.example.com"],
  [/http:\/\/127\.0\.0\.1:\d+/g, "https://api.example.com"],
  [/"ip":"127\.0\.0\.1"/g, '"ip":"203.0.113.7"'],
  [/\b[0-9a-f]{12}@example\.test\b/g, "grace@example.com"],
  [/@example\.test\b/g, "@example.com"],
];

export function stable(raw: OperationExample, recorded: RecordedExample): OperationExample {
  let text = JSON.stringify(raw, (_, value: unknown) =>
    isRecord(value) && "items" in value && Array.isArray(value["items"])
      ? { ...value, items: value["items"].slice(0, 2) as unknown }
      : value,
  ).replaceAll(recorded.owner.email, "ada@example.com");
  for (const [pattern, replacement] of replacements) text = text.replaceAll(pattern, replacement);
  return JSON.parse(stableTimes(stableIds(text, recorded))) as OperationExample;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

function stableIds(text: string, { call, operation, owner }: RecordedExample): string {
  const names = new Map<string, string>([[owner.userId, "ada"]]);
  for (const [name, value] of Object.entries(call.params ?? {})) names.set(value, nounOf(name));
  const counts = new Map<string, number>();
  const nameOf = (id: string, label: string): string => {
    let name = names.get(id);
    if (name === undefined) {
      const count = (counts.get(label) ?? 0) + 1;
      counts.set(label, count);
      names.set(id, (name = count === 1 ? label : `${label} ${count}`));
    }
    return name;
  };
  for (const [, key, id] of text.matchAll(keyedUuids)) {
    nameOf(id!, nounOf(key === "id" ? lastNoun(operation) : key!));
  }
  // The name of an id with a prefix comes from its prefix.
  for (const id of names.keys()) if (id.search(prefixed) >= 0) names.delete(id);
  return text
    .replaceAll(uuids, (id) => (/^9{8}-/.test(id) ? id : uuidOf(nameOf(id, "other"))))
    .replaceAll(prefixed, (id, prefix: string) => `${prefix}${characters(nameOf(id, prefix), 20)}`);
}

/** Returns the last collection in the path: `/projects/{project_id}/environments` → `environments`. */
const lastNoun = ({ path }: Operation): string =>
  path.split("/").findLast((part) => part.endsWith("s")) ?? "other";

const nouns: Readonly<Record<string, string>> = {
  env: "environment",
  production_environment: "environment",
  workspace: "team",
  user: "grace",
};

function nounOf(key: string): string {
  const noun = key.replace(/_id$/, "").replace(/s$/, "");
  return nouns[noun] ?? noun;
}

function digest(name: string): Buffer {
  return createHash("sha256").update(name).digest();
}

function uuidOf(name: string): string {
  const hex = digest(name).toString("hex");
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}

function characters(name: string, length: number): string {
  return [...digest(name)]
    .slice(0, length)
    .map((byte) => "abcdefghijklmnopqrstuvwxyz0123456789"[byte % 36])
    .join("");
}

/** Replaces times, and keeps the distance of each time from the earliest recent time, in whole seconds. */
function stableTimes(text: string): string {
  const found = [...text.matchAll(times)].map(([time]) => Date.parse(time));
  const recent = found.filter((time) => time > Date.now() - 3_600_000);
  const start = Math.min(...(recent.length > 0 ? recent : found));
  return text.replaceAll(times, (time) =>
    new Date(morning + Math.round((Date.parse(time) - start) / 1000) * 1000).toISOString(),
  );
}

/**
 * Completes a value by its schema: copies missing required fields from the recorded value, and removes unknown fields.
 */
export function completeValue(
  value: unknown,
  recorded: unknown,
  refusals: (value: unknown) => readonly OutputUnit[],
): unknown {
  const copy = structuredClone(value);
  for (const { keyword, instanceLocation, error } of refusals(copy)) {
    const path = instanceLocation.split("/").slice(1);
    const name = /"(.+)"/.exec(error)?.[1];
    const target = at(copy, path);
    // Several schemas may refuse a value that another schema accepts, so the value may be valid by now.
    if (name === undefined || !isRecord(target) || refusals(copy).length === 0) continue;
    if (keyword === "additionalProperties") delete target[name];
    if (keyword !== "required") continue;
    const source = at(recorded, path);
    if (isRecord(source) && name in source) target[name] ??= source[name];
  }
  return copy;
}

/** Returns the value at a path. For an element that a list lacks, returns the last element of the list. */
function at(value: unknown, path: readonly string[]): unknown {
  let part = value;
  for (const key of path) {
    if (Array.isArray(part)) part = (part as unknown[])[Number(key)] ?? (part as unknown[]).at(-1);
    else part = isRecord(part) ? part[key] : undefined;
  }
  return part;
}
