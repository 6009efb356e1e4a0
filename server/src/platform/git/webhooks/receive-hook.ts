/**
 * Receives a push delivery of a forge. Only a sender that knows the project's secret is trusted. Every delivery is
 * recorded, even a refused one, so that the owner can debug the webhook. A repeated delivery does not deploy again.
 */
import type { IncomingHttpHeaders } from "node:http";
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { DomainError } from "#lib/errors.ts";
import { KeyedMutex } from "#lib/concurrency/keyed-mutex.ts";
import { deployPush } from "#platform/deployments/request/deploy.ts";
import { hookNotFound, payloadInvalid, signatureInvalid } from "../errors.ts";
import { type Delivery, isSigned, recognise } from "./forges.ts";
import { openGitSecret } from "../git-secrets.ts";
import {
  findByHook,
  followedBranches,
  isDelivered,
  insertDeliveryId,
  type ProjectRow,
  saveDelivery,
} from "../store.ts";

type Needs = Pick<App, "db" | "secrets" | "clock">;

export interface HookResult {
  result: "queued" | "ignored";
  detail: string;
  deployments: string[];
}

const rememberedMs = 24 * 3_600_000;
const turns = new KeyedMutex();

export async function findHookProject({ db }: Pick<App, "db">, hookId: string): Promise<ProjectRow> {
  const project = await findByHook(db, hookId);
  if (!project) throw hookNotFound();
  return project;
}

export async function receiveHook(
  app: Needs,
  project: ProjectRow,
  { headers, body }: { headers: IncomingHttpHeaders; body: Buffer },
): Promise<HookResult> {
  const delivery = recognise(headers);
  const record = (status: number, detail: string) =>
    saveDelivery(
      app.db,
      project.id,
      { at: app.clock.now().toISOString(), event: delivery.event, status, detail },
      // A sender without the secret does not change the recorded forge.
      status === 401 ? null : delivery.provider,
    );
  try {
    const secret = openGitSecret(app, "hook_secret", project.id, project.hook_secret_sealed);
    if (!isSigned(headers, body, secret)) throw signatureInvalid();
    const result = await turns.run(project.id, () =>
      handleDelivery(app, project, delivery, parsePayload(headers, body)),
    );
    await record(202, result.detail);
    return result;
  } catch (error) {
    if (error instanceof DomainError) await record(error.status, error.detail);
    throw error;
  }
}

async function handleDelivery(
  app: Needs,
  project: ProjectRow,
  delivery: Delivery,
  payload: unknown,
): Promise<HookResult> {
  const meaning = delivery.meaning(payload);
  if ("ignored" in meaning) return ignoreDelivery(meaning.ignored);
  if (project.repo_url === null) return ignoreDelivery("The project's repository is hosted here.");
  if (!project.auto_deploy) return ignoreDelivery("Auto-deploy is off for this project.");
  const followed = await followedBranches(app.db, project.id);
  const changes = meaning.changes.filter(({ branch }) => followed.includes(branch));
  if (changes.length === 0) return ignoreDelivery(`No environment follows ${meaning.changes[0]?.branch}.`);
  if (delivery.id !== null && (await isDelivered(app.db, project.id, delivery.id)))
    return ignoreDelivery("This delivery was handled before.");
  const actor = systemActor(delivery.provider);
  const deployments: string[] = [];
  for (const change of changes) {
    const queued = await deployPush(app, { ...change, projectId: project.id, actor });
    deployments.push(...queued.map(({ id }) => id));
  }
  // The id is recorded after the deployments are queued. A crash in between deploys twice at worst, and never skips a
  // deployment.
  if (delivery.id !== null) {
    const at = app.clock.now();
    const since = new Date(at.getTime() - rememberedMs);
    await insertDeliveryId(app.db, project.id, delivery.id, { at, since });
  }
  const branches = changes.map(({ branch }) => branch).join(", ");
  return { result: "queued", detail: `A deployment of ${branches} is queued.`, deployments };
}

const ignoreDelivery = (detail: string): HookResult => ({ result: "ignored", detail, deployments: [] });

/** Parses JSON, or GitHub's default: a form with JSON in the field `payload`. */
function parsePayload(headers: IncomingHttpHeaders, body: Buffer): unknown {
  const isForm = headers["content-type"]?.startsWith("application/x-www-form-urlencoded") ?? false;
  const text = isForm ? new URLSearchParams(body.toString()).get("payload") : body.toString();
  try {
    return JSON.parse(text ?? "");
  } catch {
    throw payloadInvalid();
  }
}
