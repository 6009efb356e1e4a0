/**
 * Custom names of projects: `www.customer.example` for `<slug>.<apps domain>`. A name is served once DNS says that it is
 * meant for this very project, looked at on demand and again on a timer for as long as it is there. It promises that
 * nobody serves a name whose owner did not point it at them, that a name verified by one project is no other's, and
 * that a verified one survives a resolver that is away and a zone that is wrong for a moment.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import { notify } from "#accounts/notifications/notifications.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Transaction } from "#schema.ts";
import { getProject } from "../projects/projects.ts";
import { noCustomDomain } from "./errors.ts";
import { type Finding, lookUp } from "./look.ts";
import { type Domain, toDomain } from "./schema.ts";
import { type DomainState, nextState } from "./states.ts";
import * as store from "./store.ts";

type Needs = Pick<App, "db" | "clock" | "config">;

export async function listDomains(
  app: Pick<App, "db" | "config">,
  actor: Actor,
  workspace: string | undefined,
): Promise<Domain[]> {
  const rows = await store.listDomainRows(app.db, workspaceIds(actor, workspace));
  return rows.map((row) => toDomain(app, row));
}

/** Asks DNS now. */
export async function verifyDomain(app: Needs, actor: Actor, projectId: string): Promise<Domain> {
  const { id } = await getProject(app, actor, projectId);
  const row = await store.findDomain(app.db, id);
  if (!row) throw noCustomDomain();
  await check(app, row, actor);
  const now = await store.findDomain(app.db, id);
  if (!now) throw noCustomDomain();
  return toDomain(app, now);
}

/** By the timer: nobody has asked. */
export function checkAgain(app: Needs, row: store.DomainRow): Promise<void> {
  return check(app, row, null);
}

async function check(app: Needs, looked: store.DomainRow, actor: Actor | null): Promise<void> {
  const names = { hostname: looked.custom_domain, target: toDomain(app, looked).cname_target };
  const finding = await lookUp(names, app.config.dnsServers);
  await transaction(app.db, async (tx) => {
    const row = await store.lockDomain(tx, looked);
    // Its owner has changed it meanwhile: what was found is of no interest.
    if (!row || row.name !== looked.name) return;
    // Of a name that nobody has looked at, what is counted belongs to the one before it.
    const misses = row.domain_checked_at === null ? 0 : row.domain_misses;
    const before = { status: row.domain_status, misses };
    const state = nextState(before, await free(tx, row, finding), { isAsked: actor !== null });
    await store.writeState(tx, row.id, state, app.clock.now());
    if (state.status !== before.status) await tell(tx, row, state, actor);
  });
}

/** Found to be ours, it is another project's all the same while that one has it verified. */
async function free(tx: Transaction, row: store.DomainRow, finding: Finding): Promise<Finding> {
  if (finding.is !== "ours" || !(await store.isVerifiedElsewhere(tx, row))) return finding;
  return {
    is: "elsewhere",
    error: `${row.custom_domain} is served for another project. Remove it there first.`,
  };
}

async function tell(
  tx: Transaction,
  row: store.DomainRow,
  { status, error }: DomainState,
  actor: Actor | null,
): Promise<void> {
  const target = { kind: "project", id: row.id, label: row.name };
  const isVerified = status === "verified";
  await recordActivity(
    tx,
    actor ?? systemActor("domain check"),
    isVerified ? "domain.verified" : "domain.failed",
    target,
    row.workspace_id,
    { hostname: row.custom_domain },
  );
  await notify(tx, {
    workspaceId: row.workspace_id,
    kind: isVerified ? "domain_verified" : "domain_failed",
    title: isVerified ? `${row.custom_domain} is verified` : `${row.custom_domain} could not be verified`,
    body: isVerified ? `It serves ${row.name} from now on.` : (error ?? ""),
    target,
  });
}
