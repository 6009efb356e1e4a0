/** Tests the recovery of apps after a crash of the server at a named point. */
import { afterEach, expect, test, vi } from "vitest";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../test/harness.ts";
import { appsHost, candidate, deploy, makeEnvironment, program } from "./testing/apps-host.ts";

const { db } = await testDatabase();
const host = await appsHost(db);
const { signal } = new AbortController();
const ports: number[] = [];

afterEach(async () => {
  onKillPoint(undefined);
  // The fake driver's processes outlive a test, so each is ended over HTTP.
  for (const port of ports.splice(0)) await fetch(`http://127.0.0.1:${port}/exit`).catch(() => {});
});

function endAt(point: string): void {
  onKillPoint(async (reached) => {
    if (reached === point) throw new Error(`the server ended at ${point}`);
  });
}

async function restart(): Promise<void> {
  onKillPoint(undefined);
  await host.restart();
}

async function instances(environmentId: string) {
  return db
    .selectFrom("app_instances")
    .select(["state", "deployment_id"])
    .where("environment_id", "=", environmentId)
    .execute();
}

async function owners(): Promise<(string | null)[]> {
  const rows = await db
    .selectFrom("machines")
    .select("owner_id")
    .where("owner_kind", "=", "app")
    .where("desired", "<>", "removed")
    .execute();
  return rows.map(({ owner_id }) => owner_id);
}

test("app.released: removes a release that was not switched to, and leaves the earlier app serving", async () => {
  const { environment } = await makeEnvironment(db);
  const first = await deploy(host, environment, 1, { argv: program("one") });
  ports.push(first.port);
  endAt("app.released");
  await expect(candidate(host, environment, 2, { argv: program("two") })).rejects.toThrow("ended at");
  await restart();
  expect(await instances(environment.id)).toEqual([{ state: "live", deployment_id: first.deploymentId }]);
  expect(await owners()).toEqual([first.instanceId]);
});

test("app.switched: serves with the new instance, and drains the earlier one", async () => {
  const { environment } = await makeEnvironment(db);
  ports.push((await deploy(host, environment, 1, { argv: program("one") })).port);
  const second = await candidate(host, environment, 2, { argv: program("two") });
  ports.push(second.port);
  await second.waitHealthy(signal);
  endAt("app.switched");
  await expect(second.takeOver(signal)).rejects.toThrow("ended at");
  await restart();
  await vi.waitFor(
    async () =>
      expect(await instances(environment.id)).toEqual([
        { state: "live", deployment_id: second.deploymentId },
      ]),
    20_000,
  );
  const row = await db
    .selectFrom("environments")
    .select("live_deployment_id")
    .where("id", "=", environment.id)
    .executeTakeFirstOrThrow();
  expect(row.live_deployment_id).toBe(second.deploymentId);
}, 60_000);

test("app.drained: removes an instance that ended before the crash", async () => {
  const { environment } = await makeEnvironment(db);
  ports.push((await deploy(host, environment, 1, { argv: program("one") })).port);
  endAt("app.drained");
  const second = await deploy(host, environment, 2, { argv: program("two") });
  ports.push(second.port);
  await vi.waitFor(() => expect(host.front.drains.length).toBeGreaterThan(0));
  await restart();
  await vi.waitFor(
    async () =>
      expect(await instances(environment.id)).toEqual([
        { state: "live", deployment_id: second.deploymentId },
      ]),
    20_000,
  );
}, 60_000);
