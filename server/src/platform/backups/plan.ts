/** Limits of backups by plan, and the time of day of daily backups. Pure functions. */
import { createHash } from "node:crypto";
import type { Plan } from "#accounts/roles.ts";

export const dayMs = 24 * 60 * 60_000;

interface BackupLimits {
  retentionDays: number;
  /** Manual backups per day in UTC. */
  dailyQuota: number;
  canAutoBackup: boolean;
}

/** Limits by plan. Plan starter includes no add-ons, but an add-on keeps its backups when its plan is lowered. */
export const backupLimits: Readonly<Record<Plan, BackupLimits>> = {
  starter: { retentionDays: 7, dailyQuota: 0, canAutoBackup: false },
  pro: { retentionDays: 7, dailyQuota: 5, canAutoBackup: true },
  team: { retentionDays: 30, dailyQuota: 20, canAutoBackup: true },
};

/** Returns the next plan with a higher daily quota; null for the highest plan. */
export function planForMore(plan: Plan): Plan | null {
  return { starter: "pro" as const, pro: "team" as const, team: null }[plan];
}

export function expiryOf(plan: Plan, from: Date): Date {
  return new Date(from.getTime() + backupLimits[plan].retentionDays * dayMs);
}

export function startOfDay(now: Date): Date {
  return new Date(Math.floor(now.getTime() / dayMs) * dayMs);
}

/** Returns the first daily time of the add-on after `after`. The time of day is fixed, and differs between add-ons. */
export function nextDaily(addonId: string, after: Date): Date {
  const second = createHash("sha256").update(addonId).digest().readUInt32BE() % (24 * 60 * 60);
  const today = startOfDay(after).getTime() + second * 1000;
  return new Date(today > after.getTime() ? today : today + dayMs);
}
