import { defineError } from "#lib/errors.ts";

export const networkOff = defineError(
  "network_off",
  409,
  () =>
    "The sandbox has network=off, so its ports are not served; create it with network=restricted or open.",
);

export const portsNeedCard = defineError("ports_not_available", 409, (tier: string) => ({
  detail: `Tier ${tier} cannot expose ports; the tiers pay-as-you-go and enterprise can.`,
  meta: { limit: "can_expose_ports", allowed: false, tier_needed: "payg" },
}));
