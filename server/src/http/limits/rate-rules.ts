/** Selects the limits that count a request, by the route's kind and the caller's plan or tier. */
import { isIPv6 } from "node:net";
import type { Actor } from "#accounts/actor.ts";
import type { Plan, SandboxTier } from "#accounts/roles.ts";
import type { Config } from "#config.ts";
import type { Route } from "../define-route.ts";
import type { RateRule } from "./rate-limit.ts";

export type RateNumbers = Pick<Config, Extract<keyof Config, `rateLimit${string}`>>;

const plans: readonly Plan[] = ["starter", "pro", "team"];
const tiers: readonly SandboxTier[] = ["free", "payg", "enterprise"];

/** A token that reaches several workspaces gets the best plan among them. */
const best = <T>(order: readonly T[], values: readonly T[]): T =>
  values.reduce((a, b) => (order.indexOf(b) > order.indexOf(a) ? b : a), order[0]!);

export function planOf(actor: Actor): Plan {
  return best(
    plans,
    actor.workspaces.map((workspace) => workspace.plan),
  );
}

function tierOf(actor: Actor): SandboxTier {
  return best(
    tiers,
    actor.workspaces.map((workspace) => workspace.sandboxTier),
  );
}

/** Limit that the agent API's document states. */
const invokesPerMinute = 120;

/** Returns all limits that count a request to this route. */
export function rateRules(
  numbers: RateNumbers,
  route: Pick<Route, "api" | "rateLimit">,
  actor: Actor,
): RateRule[] {
  if (route.rateLimit === "none") return [];
  // Only the document's limit applies, because the plan's limit for all requests may be lower.
  if (route.rateLimit === "agent_invoke") {
    return [{ name: "agent_invoke", perMinute: invokesPerMinute }];
  }
  const rules = [apiRule(numbers, route.api, actor)];
  if (route.rateLimit === "sandbox_create") {
    const perMinute = numbers.rateLimitSandboxCreatesPerSecond * 60;
    rules.push({ name: "sandbox_create", perMinute, burst: numbers.rateLimitSandboxCreatesBurst });
  }
  return rules;
}

/** Returns the rule that counts requests without a credential by address. */
export function addressRule({ rateLimitAddress: perMinute }: RateNumbers): RateRule {
  return { name: "address", perMinute };
}

/** Limits unknown credentials by the client's address. Valid credentials are not counted. */
export function unknownCredentialRule({ rateLimitUnknownCredentials: perMinute }: RateNumbers): RateRule {
  return { name: "unknown credentials", perMinute };
}

/**
 * Returns the holder whose counters count a request from this address. An IPv6 client has at least a /64, and could use
 * each of its addresses once.
 */
export function addressHolder(address: string | undefined): string {
  if (address === undefined || !isIPv6(address)) return address ?? "unknown";
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address);
  if (mapped) return mapped[1]!;
  const [head = "", tail = ""] = address.split("::", 2);
  const groups = (text: string) => (text === "" ? [] : text.split(":"));
  const missing = address.includes("::") ? 8 - groups(head).length - groups(tail).length : 0;
  const all = [...groups(head), ...Array.from({ length: missing }, () => "0"), ...groups(tail)];
  return `${all.slice(0, 4).join(":")}::/64`;
}

function apiRule(numbers: RateNumbers, api: Route["api"], actor: Actor): RateRule {
  if (api === "sandbox") {
    const perMinute = {
      free: numbers.rateLimitSandboxFree,
      payg: numbers.rateLimitSandboxPayg,
      enterprise: numbers.rateLimitSandboxEnterprise,
    }[tierOf(actor)];
    return { name: api, perMinute };
  }
  const perMinute = {
    starter: numbers.rateLimitPlatformStarter,
    pro: numbers.rateLimitPlatformPro,
    team: numbers.rateLimitPlatformTeam,
  }[planOf(actor)];
  return { name: api, perMinute };
}
