import { afterAll, beforeEach, describe, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import { listNotifications } from "#accounts/notifications/notifications.ts";
import type { Jobs } from "#jobs/jobs.ts";
import { makePerson, makeProject } from "../../../test/factories.ts";
import { silentLog, testClock, testConfig, testDatabase } from "../../../test/harness.ts";
import { listDomains, verifyDomain } from "./domains.ts";
import { lookUp } from "./dns-lookup.ts";
import { checkDue } from "./recheck.ts";
import { ServedDomains } from "./served-domains.ts";
import { serveDns } from "./testing/dns-server.ts";

const { db } = await testDatabase();
const dns = await serveDns({});
afterAll(() => dns.close());
const clock = testClock();
const config = testConfig({ dnsServers: dns.address, appsDomain: "apps.example:8443" });
// No worker runs the jobs; the tests run each round of checks.
const jobs = { add: async () => {} } as unknown as Jobs;
const app = { db, clock, config, jobs, log: silentLog };
const { user, workspace } = await makePerson(db);
const actor: Actor = {
  ...systemActor("test"),
  kind: "user",
  id: user.id,
  userId: user.id,
  workspaces: [
    { id: workspace.id, kind: "personal", role: null, plan: "team", sandboxTier: "free", suspended: false },
  ],
} as unknown as Actor;

beforeEach(async () => {
  await db.deleteFrom("projects").execute();
  await db.deleteFrom("notifications").execute();
  await db.deleteFrom("activity").execute();
  dns.zone = { "slug.apps.example": { A: ["198.51.100.7"] } };
  dns.isBroken = false;
  dns.onQuestion = async () => {};
});

const project = async (name: string, domain: string | null) =>
  (await makeProject(db, workspace.id, { name, domain })).id;
const verify = (id: string) => verifyDomain(app, actor, id);
const notifications = async () =>
  (await listNotifications(app, actor)).map(({ kind, title, body }) => ({ kind, title, body }));
/** Runs a round of checks after this many minutes, and returns the domain's status. */
async function later(minutes: number): Promise<string | undefined> {
  clock.advance(minutes * 60_000);
  await checkDue(app);
  const [first] = await listDomains(app, actor, undefined);
  return first?.status;
}

describe("verification of a custom name", () => {
  test("verifies a name whose CNAME record names the project, in any case and through other records", async () => {
    const id = await project("slug", "www.customer.example");
    dns.zone["www.customer.example"] = { CNAME: "Alias.Customer.example" };
    dns.zone["alias.customer.example"] = { CNAME: "SLUG.apps.example" };
    expect(await verify(id)).toEqual({
      project_id: id,
      project_name: "slug",
      hostname: "www.customer.example",
      status: "verified",
      cname_target: "slug.apps.example",
      checked_at: clock.now().toISOString(),
      error: null,
    });
    expect(await notifications()).toEqual([
      { kind: "domain_verified", title: "www.customer.example is verified", body: expect.any(String) },
    ]);
  });

  test("verifies an apex name by A records with our addresses and a TXT record that names the project", async () => {
    const id = await project("slug", "customer.example");
    dns.zone["customer.example"] = { A: ["198.51.100.7"] };
    expect(await verify(id)).toMatchObject({
      status: "failed",
      error: expect.stringContaining("TXT record _kontor.customer.example with the text slug.apps.example"),
    });
    dns.zone["_kontor.customer.example"] = { TXT: ["other.apps.example"] };
    expect((await verify(id)).status).toBe("failed");
    dns.zone["_kontor.customer.example"] = { TXT: ["v=spf1", "slug.apps.example"] };
    expect((await verify(id)).status).toBe("verified");
  });

  test.each([
    ["no record", {}, "There is no record for www.customer.example. Set a CNAME record"],
    [
      "another alias",
      { CNAME: "other.apps.example" },
      "is an alias of other.apps.example. Set a CNAME record",
    ],
    ["an alias of itself", { CNAME: "www.customer.example" }, "is an alias of www.customer.example"],
    ["an address elsewhere", { A: ["203.0.113.1"] }, "leads to 203.0.113.1. Set a CNAME record"],
    [
      "one address of ours and one elsewhere",
      { A: ["198.51.100.7", "203.0.113.1"] },
      "leads to 198.51.100.7, 203",
    ],
  ])("does not verify %s, and names the record to set in the error", async (_what, records, error) => {
    const id = await project("slug", "www.customer.example");
    dns.zone["www.customer.example"] = records;
    const domain = await verify(id);
    expect(domain).toMatchObject({ status: "failed", error: expect.stringContaining(error) });
    expect(domain.error).toContain("slug.apps.example");
  });

  test("refuses to verify a project without a custom domain", async () => {
    await expect(verify(await project("slug", null))).rejects.toMatchObject({ code: "no_custom_domain" });
  });
});

describe("timer of DNS checks", () => {
  test("checks a pending name every minute for an hour, and verifies it without a request", async () => {
    await project("slug", "www.customer.example");
    for (let minute = 0; minute < 59; minute += 1) expect(await later(1)).toBe("pending");
    expect(await later(1)).toBe("failed");
    expect(await notifications()).toMatchObject([{ kind: "domain_failed" }]);
    dns.zone["www.customer.example"] = { CNAME: "slug.apps.example" };
    expect(await later(5)).toBe("failed");
    expect(await later(5)).toBe("verified");
  });

  test("keeps a name verified during a resolver outage and a brief error in its zone", async () => {
    const id = await project("slug", "www.customer.example");
    dns.zone["www.customer.example"] = { CNAME: "slug.apps.example" };
    await verify(id);
    dns.isBroken = true;
    for (let round = 0; round < 5; round += 1) expect(await later(10)).toBe("verified");
    dns.isBroken = false;
    dns.zone["www.customer.example"] = { CNAME: "elsewhere.example" };
    expect(await later(10)).toBe("verified");
    expect(await later(1)).toBe("verified");
    dns.zone["www.customer.example"] = { CNAME: "slug.apps.example" };
    expect(await later(1)).toBe("verified");
    dns.zone["www.customer.example"] = { CNAME: "elsewhere.example" };
    expect([await later(10), await later(1), await later(1)]).toEqual(["verified", "verified", "failed"]);
    expect((await notifications()).map(({ kind }) => kind)).toEqual(["domain_failed", "domain_verified"]);
  });
});

describe("a custom name in several projects", () => {
  test("verifies a name for the project that its records name, and for no second project meanwhile", async () => {
    const first = await project("slug", "www.customer.example");
    const second = await project("other", "www.customer.example");
    dns.zone["www.customer.example"] = { CNAME: "other.apps.example" };
    expect((await verify(first)).status).toBe("failed");
    expect((await verify(second)).status).toBe("verified");
    dns.zone["www.customer.example"] = { CNAME: "slug.apps.example" };
    expect(await verify(first)).toMatchObject({
      status: "failed",
      error: expect.stringContaining("served for another project"),
    });
    for (let miss = 0; miss < 3; miss += 1) await verify(second);
    expect((await verify(first)).status).toBe("verified");
  });

  test("verifies a name for only one of two projects when both are checked at once", async () => {
    const ids = [
      await project("slug", "www.customer.example"),
      await project("other", "www.customer.example"),
    ];
    dns.zone["www.customer.example"] = { CNAME: "slug.apps.example" };
    dns.zone["slug.apps.example"] = { CNAME: "other.apps.example" };
    const both = await Promise.all(ids.map(verify));
    expect(both.map(({ status }) => status).toSorted()).toEqual(["failed", "verified"]);
  });

  test("does not change a name that its owner changed during the DNS queries", async () => {
    const id = await project("slug", "www.customer.example");
    dns.zone["www.customer.example"] = { CNAME: "slug.apps.example" };
    dns.onQuestion = async () => {
      await db
        .updateTable("projects")
        .set({ custom_domain: "new.customer.example" })
        .where("id", "=", id)
        .execute();
    };
    expect(await verify(id)).toMatchObject({
      hostname: "new.customer.example",
      status: "pending",
      checked_at: null,
    });
  });
});

test("ends the look-up of a name on slow DNS servers after one deadline for all queries", async () => {
  dns.onQuestion = () => new Promise(() => {});
  const names = { hostname: "www.customer.example", target: "slug.apps.example" };
  expect(await lookUp(names, [dns.address], 200)).toEqual({
    is: "unknown",
    error:
      "The DNS servers for www.customer.example did not respond within 0.2 s. Check that they work, then verify again.",
  });
});

describe("served custom names", () => {
  test("serves verified names only, each as the production host of its project", async () => {
    const served = new ServedDomains(app);
    const id = await project("slug", "www.customer.example");
    await project("other", "pending.customer.example");
    dns.zone["www.customer.example"] = { CNAME: "slug.apps.example" };
    await served.read();
    expect(served.generatedOf("www.customer.example")).toBeUndefined();
    await verify(id);
    await served.read();
    expect(served.generatedOf("www.customer.example")).toBe("slug.apps.example");
    expect(served.generatedOf("pending.customer.example")).toBeUndefined();
    await db.updateTable("projects").set({ deleted_at: clock.now() }).where("id", "=", id).execute();
    await served.read();
    expect(served.generatedOf("www.customer.example")).toBeUndefined();
  });
});
