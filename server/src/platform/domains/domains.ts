/**
 * Custom names of projects: `www.customer.example` for `<slug>.<apps domain>`. A name is served once its DNS records
 * name the project. The records are checked on demand and by a timer.
 *
 * No project serves a name that its owner did not point at that project. While a name is verified for one project, no
 * other project gets it. A verified name survives a resolver outage and a brief error in its zone.
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
import { type Finding, lookUp } from "./dns-lookup.ts";
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

/** Checks the DNS records of a project's name now, and returns the domain. */
export async function verifyDomain(app: Needs, actor: Actor, projectId: string): Promise<Domain> {
  const { id } = await getProject(app, actor, projectId);
  const row = await store.findDomain(app.db, id);
  if (!row) throw noCustomDomain();
  await check(app, row, actor);
  const now = await store.findDomain(app.db, id);
  if (!now) throw noCustomDomain();
  return toDomain(app, now);
}

/** Checks the DNS records of a name for the timer. */
export function checkAgain(app: Needs, row: store.DomainRow): Promise<void> {
  return check(app, row, null);
}

async function check(app: Needs, checked: store.DomainRow, actor: Actor | null): Promise<void> {
  const names = { hostname: checked.custom_domain, target: toDomain(app, checked).cname_target };
  const finding = await lookUp(names, app.config.dnsServers);
  await transaction(app.db, async (tx) => {
    const row = await store.lockDomain(tx, checked);
    // The owner changed the name during the queries, so their result is obsolete.
    if (!row || row.name !== checked.name) return;
    // A name that was never checked has no misses; the stored ones belong to the previous name.
    const misses = row.domain_checked_at === null ? 0 : row.domain_misses;
    const before = { status: row.domain_status, misses };
    const state = nextState(before, await refuseIfTaken(tx, row, finding), { isAsked: actor !== null });
    await store.writeState(tx, row.id, state, app.clock.now());
    if (state.status !== before.status) await notifyOwner(tx, row, state, actor);
  });
}

/** Refuses a name that DNS shows as ours, while another project has it verified. */
async function refuseIfTaken(tx: Transaction, row: store.DomainRow, finding: Finding): Promise<Finding> {
  if (finding.is !== "ours" || !(await store.isVerifiedElsewhere(tx, row))) return finding;
  return {
    is: "elsewhere",
    error: `${row.custom_domain} is served for another project. Remove it there first.`,
  };
}

async function notifyOwner(
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
    body: isVerified ? `The domain serves ${row.name} now.` : (error ?? ""),
    target,
  });
}
