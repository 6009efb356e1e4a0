/**
 * Push deliveries of all forges, as a table. A row names the headers that identify the forge, the event and the
 * delivery, and reads branches and commits from the payload. All forges use the project's secret.
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import { isBranchName, isCommitId } from "../names.ts";

export const providers = ["hosted", "github", "gitlab", "gitea", "bitbucket", "generic"] as const;
export type Provider = (typeof providers)[number];

/** Branch with a new head. */
interface Change {
  branch: string;
  sha: string;
}

/** Meaning of a delivery: the new heads to deploy, or the reason to ignore the delivery. */
type Meaning = { changes: Change[] } | { ignored: string };

interface Forge {
  provider: Exclude<Provider, "hosted">;
  /** Name of the header with the event. */
  event: string;
  /** Names of headers that identify the delivery. Retries have the same values. */
  delivery: readonly string[];
  pushes: readonly string[];
  pings: readonly string[];
  read(payload: unknown): Meaning;
}

/** Forges in the order in which they are checked. Gitea and Forgejo also send GitHub's headers. */
const forges: readonly Forge[] = [
  {
    provider: "gitea",
    event: "x-gitea-event",
    delivery: ["x-gitea-delivery", "x-forgejo-delivery"],
    pushes: ["push"],
    pings: ["ping"],
    read: readRef,
  },
  {
    provider: "gitlab",
    event: "x-gitlab-event",
    delivery: ["x-gitlab-event-uuid", "idempotency-key"],
    pushes: ["Push Hook", "System Hook"],
    pings: [],
    read: readRef,
  },
  {
    provider: "bitbucket",
    event: "x-event-key",
    delivery: ["x-request-uuid", "x-request-id"],
    pushes: ["repo:push", "repo:refs_changed"],
    pings: ["diagnostics:ping"],
    read: readChanges,
  },
  {
    provider: "github",
    event: "x-github-event",
    delivery: ["x-github-delivery"],
    pushes: ["push"],
    pings: ["ping"],
    read: readRef,
  },
];

/** Stands for any sender that signs as GitHub does and sends GitHub's payload. */
const generic: Forge = { ...forges.at(-1)!, provider: "generic", event: "x-event" };

export interface Delivery {
  provider: Provider;
  event: string | null;
  /** Id of the delivery. Null if the forge sends no id; each delivery then counts as new. */
  id: string | null;
  /** Returns the meaning of the payload. Throws for a payload that no forge sends. */
  meaning(payload: unknown): Meaning;
}

export function recognise(headers: IncomingHttpHeaders): Delivery {
  const forge = forges.find(({ event }) => headers[event] !== undefined) ?? generic;
  const event = textOf(headers[forge.event]);
  const id = forge.delivery.map((name) => textOf(headers[name])).find((value) => value !== null) ?? null;
  return {
    provider: forge.provider,
    event,
    id,
    meaning: (payload) => {
      if (event !== null && forge.pings.includes(event)) return { ignored: "A ping; the webhook works." };
      if (event !== null && !forge.pushes.includes(event)) return { ignored: `${event} is not a push.` };
      return forge.read(payload);
    },
  };
}

/** Names of headers with the hexadecimal HMAC-SHA256 of the raw body, with or without the prefix `sha256=`. */
const signatures = [
  "x-hub-signature-256",
  "x-gitea-signature",
  "x-forgejo-signature",
  "x-hub-signature",
] as const;

/**
 * True if the sender knows the secret. The comparison takes constant time. GitLab sends the secret, the other forges
 * sign with it.
 */
export function isSigned(headers: IncomingHttpHeaders, body: Buffer, secret: string): boolean {
  const quoteRef = headers["x-gitlab-token"];
  if (typeof quoteRef === "string") return isSame(Buffer.from(quoteRef), Buffer.from(secret));
  const expected = createHmac("sha256", secret).update(body).digest();
  return signatures.some((name) => {
    const [, digits] = /^(?:sha256=)?([0-9a-f]{64})$/i.exec(textOf(headers[name]) ?? "") ?? [];
    return digits !== undefined && isSame(Buffer.from(digits, "hex"), expected);
  });
}

/** Compares digests of the values, so that the time does not depend on their length. */
function isSame(one: Buffer, other: Buffer): boolean {
  const digest = (bytes: Buffer) => createHmac("sha256", "compare").update(bytes).digest();
  return timingSafeEqual(digest(one), digest(other));
}

function textOf(header: string | string[] | undefined): string | null {
  return typeof header === "string" && /^[\u0020-\u007e]{1,200}$/.test(header) ? header : null;
}

/** Reads a delivery of GitHub, GitLab, Gitea or Forgejo, which names one ref and its new commit. */
function readRef(payload: unknown): Meaning {
  const { ref, after, deleted } = objectOf(payload);
  if (typeof ref !== "string") return { ignored: "The delivery names no branch." };
  if (!ref.startsWith("refs/heads/")) return { ignored: `${quoteRef(ref)} is not a branch.` };
  const branch = ref.slice("refs/heads/".length);
  if (deleted === true || isNone(after)) return { ignored: `${quoteRef(branch)} was deleted.` };
  return toChanges([{ branch, sha: after }]);
}

/** Reads a delivery of Bitbucket, cloud or self-hosted, which names all refs of a push. */
function readChanges(payload: unknown): Meaning {
  const { push, changes } = objectOf(payload);
  const cloud = objectOf(push)["changes"];
  const found = [cloud ?? changes]
    .flat()
    .slice(0, 200)
    .map((one) => {
      const change = objectOf(one);
      const ref = objectOf(change["ref"]);
      if (ref["type"] === "BRANCH" && change["type"] !== "DELETE")
        return { branch: ref["displayId"], sha: change["toHash"] };
      const after = objectOf(change["new"]);
      if (after["type"] === "branch")
        return { branch: after["name"], sha: objectOf(after["target"])["hash"] };
      return undefined;
    });
  const branches = found.filter((one) => one !== undefined);
  return branches.length === 0 ? { ignored: "No branch has a new commit." } : toChanges(branches);
}

function toChanges(found: readonly { branch: unknown; sha: unknown }[]): Meaning {
  const changes = found.flatMap(({ branch, sha }) =>
    typeof branch === "string" && isBranchName(branch) && typeof sha === "string" && isCommitId(sha)
      ? [{ branch, sha }]
      : [],
  );
  return changes.length === 0 ? { ignored: "The delivery names no commit of a branch." } : { changes };
}

function objectOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

const isNone = (sha: unknown): boolean => typeof sha === "string" && /^0+$/.test(sha);
const quoteRef = (text: string): string => text.replaceAll(/[^\u0021-\u007e]/g, "?").slice(0, 100);

/** Guesses the forge by the repository's address, before the first delivery. */
export function guessProvider(repositoryUrl: string | null): Provider {
  if (repositoryUrl === null) return "hosted";
  const host = /^(?:\w+:\/\/)?(?:[^@/]*@)?([^:/]+)/.exec(repositoryUrl)?.[1]?.toLowerCase() ?? "";
  const known: readonly [RegExp, Provider][] = [
    [/(^|\.)github\./, "github"],
    [/(^|\.)gitlab\./, "gitlab"],
    [/(^|\.)bitbucket\./, "bitbucket"],
    [/(^|\.)(gitea|forgejo|codeberg)\./, "gitea"],
  ];
  return known.find(([pattern]) => pattern.test(host))?.[1] ?? "generic";
}
