import { expect, test } from "vitest";
import { listNotifications } from "#accounts/notifications/notifications.ts";
import type { App } from "#app.ts";
import type { Scan, Severity } from "@kontor/runtime/oci/scan.ts";
import { testDatabase } from "../../../test/harness.ts";
import { makeProject, personOn, projectsApp } from "../testing/platform-app.ts";
import { scanAndNotify } from "./scan.ts";

const { db } = await testDatabase();
const base = await projectsApp(db);
let severities: Severity[] = [];
/** Packages with a finding each. The other findings belong to package p. */
let packages: string[] = [];
let isAnswered = true;
let scans = 0;
/** A host with fixed scan results, because real advisories change. */
const host = {
  scanAppImage: async (): Promise<Scan> => {
    scans += 1;
    const findings = severities.map((severity, index) => ({
      id: `CVE-${index}`,
      package: packages[index] ?? "p",
      installed: "1",
      fixedIn: null,
      severity,
      title: "A fault",
      source: "npm-audit",
    }));
    const source = isAnswered
      ? { source: "npm-audit", findings, unavailable: null, dataOf: null }
      : { source: "npm-audit", findings: null, unavailable: "503", dataOf: null };
    return { scanner: "kontor", sources: [source] };
  },
};
const app = { ...base, machines: { host } } as unknown as App;

async function imageOf(actor: Awaited<ReturnType<typeof personOn>>) {
  const project = await makeProject(base, actor);
  await db
    .insertInto("regions")
    .values({ code: "eu-1", name: "Here" })
    .onConflict((conflict) => conflict.doNothing())
    .execute();
  await db
    .insertInto("hosts")
    .values({
      id: "host_scan",
      region: "eu-1",
      address: "here",
      state: "ready",
      lease_until: base.clock.now(),
      cpu_class: "any",
      runtime_builds: [],
      vcpus: 1,
      memory_bytes: 1,
      disk_bytes: 1,
    })
    .onConflict((conflict) => conflict.doNothing())
    .execute();
  await addImage(project.id, 1);
  return project;
}

async function addImage(projectId: string, number: number): Promise<void> {
  await db
    .insertInto("app_images")
    .values({
      id: `app_${projectId}_${number}`,
      project_id: projectId,
      host_id: "host_scan",
      number,
      digest: "sha256:0",
      size_bytes: 1,
      run: JSON.stringify({ argv: [], port: null, health_check_path: null, user: null, cwd: "/", env: {} }),
      deployment_id: null,
      created_at: base.clock.now(),
      pruned_at: null,
    })
    .execute();
}

test("notifies the workspace once of an image with critical or high findings, with their counts", async () => {
  const owner = await personOn(db, "team");
  const stranger = await personOn(db, "team");
  const { id, name } = await imageOf(owner);
  const listSent = () => listNotifications(app, owner);
  severities = ["medium", "unknown"];
  await scanAndNotify(app, id, "b1");
  expect(await listSent()).toEqual([]);
  severities = ["critical", "high", "medium", "unknown", "unknown"];
  await scanAndNotify(app, id, "b1");
  await scanAndNotify(app, id, "b1");
  expect(await listSent()).toMatchObject([
    {
      kind: "image_findings",
      title: `Image b1 of ${name} has 2 critical or high findings`,
      body: expect.stringContaining("1 critical, 1 high, 1 medium, 0 low, 2 unknown"),
      target: { kind: "project", id },
    },
  ]);
  expect(await listNotifications(app, stranger)).toEqual([]);
});

test("notifies the workspace only of findings that are new since the project's last scan", async () => {
  const owner = await personOn(db, "team");
  const { id, name } = await imageOf(owner);
  for (const number of [2, 3, 4, 5, 6]) await addImage(id, number);
  const listSent = async () => (await listNotifications(app, owner)).map(({ title }) => title);
  const scanAndList = async (tag: string, found: string[]) => {
    severities = found.map(() => "high");
    packages = found;
    base.clock.advance(1000);
    await scanAndNotify(app, id, tag);
    return listSent();
  };
  const first = `Image b1 of ${name} has 2 critical or high findings`;
  expect(await scanAndList("b1", ["zlib", "tar"])).toEqual([first]);
  expect(await scanAndList("b2", ["zlib", "tar"])).toEqual([first]);
  const second = `Image b3 of ${name} has 1 new critical or high finding`;
  expect(await scanAndList("b3", ["zlib", "tar", "xz"])).toEqual([second, first]);
  isAnswered = false;
  expect(await scanAndList("b4", [])).toEqual([second, first]);
  isAnswered = true;
  expect(await scanAndList("b5", ["zlib", "tar", "xz"])).toEqual([second, first]);
  // A finding that was fixed and returns is new.
  expect(await scanAndList("b6", [])).toEqual([second, first]);
  const third = `Image b1 of ${name} has 1 critical or high finding`;
  expect(await scanAndList("b1", ["zlib"])).toEqual([third, second, first]);
  packages = [];
});

test("shares a running scan of the same image", async () => {
  const { id } = await imageOf(await personOn(db, "team"));
  scans = 0;
  severities = [];
  const found = await Promise.all([1, 2, 3].map(() => scanAndNotify(app, id, "b1")));
  expect(scans).toBe(1);
  expect(new Set(found).size).toBe(1);
  expect(await scanAndNotify(app, id, "b9")).toBeUndefined();
});
