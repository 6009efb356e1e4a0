import { expect, test } from "vitest";
import { testClock, testSecrets } from "../../../test/harness.ts";
import { SignInLimits } from "./sign-in-routes.ts";

const email = "ann@example.test";

function open() {
  const clock = testClock();
  const limits = new SignInLimits({ clock, secrets: testSecrets() });
  const isAllowed = (ip: string, options: { cookies?: string; account?: string } = {}) => {
    try {
      limits.allowSignIn({ email: options.account ?? email, ip, cookies: options.cookies });
      return true;
    } catch (error) {
      expect(error).toMatchObject({ code: "rate_limited", status: 429 });
      return false;
    }
  };
  const cookieFor = (account: string) => limits.deviceCookie(account, "").split(";")[0]!;
  return { clock, limits, isAllowed, cookieFor };
}

test("refuses guesses at one account from one address, and allows other addresses to sign in", () => {
  const { isAllowed } = open();
  const guesses = Array.from({ length: 12 }, () => isAllowed("203.0.113.9"));
  expect(guesses).toEqual([...Array(10).fill(true), false, false]);
  expect(isAllowed("198.51.100.1")).toBe(true);
  expect(isAllowed("203.0.113.9", { account: "bob@example.test" })).toBe(true);
});

test("exempts a known device while many addresses guess at its account", () => {
  const { clock, isAllowed, cookieFor } = open();
  const cookies = `other=1; ${cookieFor("Ann@example.test")}`;
  for (let n = 0; n < 100; n++) isAllowed(`203.0.113.${n}`);
  expect(isAllowed("198.51.100.1")).toBe(false);
  expect(isAllowed("198.51.100.1", { cookies })).toBe(true);
  for (const forged of [cookieFor("bob@example.test"), `${cookies}x`, cookies.replace(/\.\d+\./, ".1.")]) {
    expect(isAllowed("198.51.100.1", { cookies: forged })).toBe(false);
  }
  // A stolen cookie allows few guesses.
  const more = Array.from({ length: 12 }, () => isAllowed("198.51.100.1", { cookies }));
  expect(more.filter(Boolean)).toHaveLength(9);
  clock.advance(366 * 86_400_000);
  for (let n = 0; n < 100; n++) isAllowed(`203.0.113.${n}`);
  expect(isAllowed("198.51.100.1", { cookies })).toBe(false);
});

test("refuses an address that tries many accounts, and counts an IPv6 network as one address", () => {
  const { isAllowed } = open();
  const tried = Array.from({ length: 60 }, (_, n) =>
    isAllowed(`2001:db8:1:2::${n}`, { account: `made-up-${n}@example.test` }),
  );
  expect(tried.filter(Boolean)).toHaveLength(40);
  // Accounts that a refused address names are not counted.
  expect(isAllowed("198.51.100.1", { account: "made-up-59@example.test" })).toBe(true);
});

test("audits a refusal at most once a minute for each address", () => {
  const { clock, limits } = open();
  const recordRefusals = () =>
    ["203.0.113.9", "203.0.113.9", "203.0.113.8"].map((ip) => limits.shouldRecordRefusal(ip));
  expect(recordRefusals()).toEqual([true, false, true]);
  clock.advance(60_000);
  expect(recordRefusals()).toEqual([true, false, true]);
});
