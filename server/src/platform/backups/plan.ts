/** What a plan allows of backups, and when the daily ones are made. Pure. */
import { createHash } from "node:crypto";
import type { Plan } from "#accounts/roles.ts";

export const dayMs = 24 * 60 * 60_000;

interface BackupLimits {
  retentionDays: number;
  /** Made by hand, in a day of UTC. */
  dailyQuota: number;
  canAutoBackup: boolean;
}

/** Starter has no add-ons; one whose plan was lowered keeps what it has. */
export const backupLimits: Readonly<Record<Plan, BackupLimits>> = {
  starter: { retentionDays: 7, dailyQuota: 0, canAutoBackup: false },
  pro: { retentionDays: 7, dailyQuota: 5, canAutoBackup: true },
  team: { retentionDays: 30, dailyQuota: 20, canAutoBackup: true },
};

/** The plan that allows more by hand; null above the highest. */
export function planForMore(plan: Plan): Plan | null {
  return { starter: "pro" as const, pro: "team" as const, team: null }[plan];
}

export function expiryOf(plan: Plan, from: Date): Date {
  return new Date(from.getTime() + backupLimits[plan].retentionDays * dayMs);
}

export function startOfDay(now: Date): Date {
  return new Date(Math.floor(now.getTime() / dayMs) * dayMs);
}

/** The next time after `after` that is this add-on's: always the same one of the day, and another than its neighbours'. */
export function nextDaily(addonId: string, after: Date): Date {
  const second = createHash("sha256").update(addonId).digest().readUInt32BE() % (24 * 60 * 60);
  const today = startOfDay(after).getTime() + second * 1000;
  return new Date(today > after.getTime() ? today : today + dayMs);
}
