/**
 * Limits of the plans and sandbox tiers, as data: the numbers of the API documents. A limit is looked up here by name
 * and enforced with `plan_limit`, so that each number has a single source.
 */
import type { Plan, SandboxTier } from "./roles.ts";
import { planLimit } from "./errors.ts";

export const plans = ["starter", "pro", "team"] as const satisfies readonly Plan[];
export const sandboxTiers = ["free", "payg", "enterprise"] as const satisfies readonly SandboxTier[];

export interface PlanLimits {
  projects: number;
  environmentsPerProject: number;
  functions: number;
  /** Memory of a function's instance. */
  functionMemoryMb: number;
  addons: number;
  apiTokens: number;
  /** Members included in a team; the operator can add more. */
  teamMembers: number;
  /** Teams that a person may own; each is a workspace with its own limits. */
  teams: number;
  liveSessions: number;
  runsInFlight: number;
}

export const planLimits: Readonly<Record<Plan, PlanLimits>> = {
  starter: {
    projects: 1,
    environmentsPerProject: 1,
    functions: 1,
    functionMemoryMb: 256,
    addons: 0,
    apiTokens: 1,
    teamMembers: 1,
    teams: 0,
    liveSessions: 2,
    runsInFlight: 2,
  },
  pro: {
    projects: 5,
    environmentsPerProject: 3,
    functions: 10,
    functionMemoryMb: 512,
    addons: 2,
    apiTokens: 5,
    teamMembers: 1,
    teams: 0,
    liveSessions: 20,
    runsInFlight: 10,
  },
  team: {
    projects: 15,
    environmentsPerProject: Number.POSITIVE_INFINITY,
    functions: 50,
    functionMemoryMb: 1024,
    addons: 5,
    apiTokens: 20,
    teamMembers: 3,
    teams: 10,
    liveSessions: 200,
    runsInFlight: 50,
  },
};

type SandboxSize = "small" | "medium" | "large";

export interface TierLimits {
  sizes: readonly SandboxSize[];
  maxTimeoutSeconds: number;
  snapshots: number;
  volumes: number;
  /** Days for which a paused sandbox is kept. Null keeps paused sandboxes forever. */
  pausedRetentionDays: number | null;
  canExposePorts: boolean;
  canBuildTemplates: boolean;
}

const paidSizes: readonly SandboxSize[] = ["small", "medium", "large"];

export const tierLimits: Readonly<Record<SandboxTier, TierLimits>> = {
  free: {
    sizes: ["small"],
    maxTimeoutSeconds: 1800,
    snapshots: 3,
    volumes: 3,
    pausedRetentionDays: 7,
    canExposePorts: false,
    canBuildTemplates: false,
  },
  payg: {
    sizes: paidSizes,
    maxTimeoutSeconds: 86_400,
    snapshots: 50,
    volumes: 50,
    pausedRetentionDays: 30,
    canExposePorts: true,
    canBuildTemplates: true,
  },
  enterprise: {
    sizes: paidSizes,
    maxTimeoutSeconds: 86_400,
    snapshots: 1000,
    volumes: 1000,
    pausedRetentionDays: null,
    canExposePorts: true,
    canBuildTemplates: true,
  },
};

/** Returns the next higher tier. Null for the highest. */
export function nextTier(tier: SandboxTier): SandboxTier | null {
  return sandboxTiers[sandboxTiers.indexOf(tier) + 1] ?? null;
}

/** Returns the limit's name on the wire, as in `plan_limit` and the dashboard. */
function limitName(limit: keyof PlanLimits): string {
  return limit.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Throws `plan_limit` if `used` is at the limit. The given workspace then gets a notification. */
export function requireBelow(plan: Plan, limit: keyof PlanLimits, used: number, workspaceId?: string): void {
  const allowed = planLimits[plan][limit];
  if (used < allowed) return;
  const needed = plans.find((other) => planLimits[other][limit] > used) ?? null;
  throw planLimit(limitName(limit), allowed, needed, workspaceId);
}

/** Returns the usage of the plan by the names on the wire. Null for unlimited resources. */
export function planUsage(
  plan: Plan,
  used: Partial<Record<keyof PlanLimits, number>>,
): Record<string, { used: number; allowed: number | null }> {
  return Object.fromEntries(
    Object.entries(used).map(([name, count]) => {
      const limit = name as keyof PlanLimits;
      const allowed = planLimits[plan][limit];
      return [limitName(limit), { used: count, allowed: Number.isFinite(allowed) ? allowed : null }];
    }),
  );
}
