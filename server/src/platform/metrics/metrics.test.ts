import { beforeEach, describe, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import { makePerson, makeProject } from "../../../test/factories.ts";
import { silentLog, testClock, testDatabase } from "../../../test/harness.ts";
import { appHealth } from "./app-health.ts";
import { Histogram } from "./histogram.ts";
import { RequestRecorder } from "./recorder.ts";
import { requestMetrics } from "./request-metrics.ts";

const { db } = await testDatabase();
const clock = testClock();
const app = { db, clock, log: silentLog };
const { user, workspace } = await makePerson(db);
const actor = {
  ...systemActor("test"),
  userId: user.id,
  workspaces: [{ id: workspace.id, kind: "personal", role: null, plan: "team", suspended: false }],
} as unknown as Actor;

let project: string;
let environment: string;
let made = 0;

beforeEach(async () => {
  await db.deleteFrom("projects").execute();
  clock.set(new Date("2030-01-01T12:00:30Z"));
  ({ id: project, environmentId: environment } = await makeProject(db, workspace.id));
});

describe("a histogram", () => {
  test("differs by at most 1.6 % over the whole range, even after it was stored", () => {
    for (let us = 1; us < 2 ** 31; us = Math.ceil(us * 1.37)) {
      const histogram = new Histogram();
      histogram.add(us / 1000);
      const stored = new Histogram();
      stored.addBytes(histogram.toBytes());
      const read = stored.percentile(50)!;
      expect(read).toBe(histogram.percentile(99));
      // Rounding to two decimals adds half of the last decimal to the error.
      expect(Math.abs(read - us / 1000)).toBeLessThanOrEqual((us / 1000) * 0.016 + 0.005);
    }
  });

  test("adds other histograms, and reads percentiles by rank", () => {
    const [slow, fast, both] = [new Histogram(), new Histogram(), new Histogram()];
    for (let n = 0; n < 98; n += 1) fast.add(1);
    for (let n = 0; n < 2; n += 1) slow.add(1000);
    both.addBytes(fast.toBytes());
    both.addBytes(slow.toBytes());
    expect(both.percentile(50)).toBe(fast.percentile(50));
    expect(both.percentile(98)).toBe(fast.percentile(50));
    expect(both.percentile(99)).toBe(slow.percentile(50));
    expect(new Histogram().percentile(50)).toBeNull();
  });

  test("stores counts of any size, and rejects malformed bytes", () => {
    const histogram = new Histogram();
    for (let n = 0; n < 300; n += 1) histogram.add(5);
    let bytes = histogram.toBytes();
    for (let doubling = 0; doubling < 20; doubling += 1) {
      const twice = new Histogram();
      twice.addBytes(bytes);
      twice.addBytes(bytes);
      bytes = twice.toBytes();
    }
    expect(bytes.length).toBeLessThan(8);
    for (const wrong of [[255], [200, 200, 1, 1], Array(12).fill(255), [1, 128]]) {
      expect(() => new Histogram().addBytes(Uint8Array.from(wrong))).toThrow(RangeError);
    }
  });
});

describe("request metrics", () => {
  test("count every response once by minute, and those from status 500 on as errors", async () => {
    const recorder = new RequestRecorder(app);
    clock.advance(-3 * 60_000);
    for (let n = 0; n < 90; n += 1) recorder.observed(environment, { status: n < 9 ? 503 : 404, ms: 10 });
    clock.advance(3 * 60_000);
    for (let n = 0; n < 10; n += 1) recorder.observed(environment, { status: 200, ms: 200 });
    await recorder.flush();
    const metrics = await requestMetrics(app, actor, project, { period: "5m" });
    expect(metrics).toMatchObject({ period: "5m", requests: 100, requests_per_minute: 20, error_rate: 0.09 });
    expect(metrics.p50_ms).toBeCloseTo(10, 0);
    expect(metrics.p95_ms! / 200).toBeCloseTo(1, 1);
    expect(metrics.series.map(({ t, requests, errors }) => [t.slice(11, 16), requests, errors])).toEqual([
      ["11:56", 0, 0],
      ["11:57", 90, 9],
      ["11:58", 0, 0],
      ["11:59", 0, 0],
      ["12:00", 10, 0],
    ]);
    expect(metrics.series[0]).toMatchObject({ p50_ms: null, p95_ms: null, p99_ms: null });
  });

  test("are null without requests, and have wider points in longer periods", async () => {
    expect(await requestMetrics(app, actor, project, { period: "1h" })).toMatchObject({
      requests: 0,
      requests_per_minute: 0,
      error_rate: null,
      p50_ms: null,
      p95_ms: null,
      p99_ms: null,
    });
    for (const [period, points, width] of [
      ["5m", 5, 1],
      ["15m", 15, 1],
      ["1h", 60, 1],
      ["6h", 72, 5],
      ["24h", 96, 15],
    ] as const) {
      const { series } = await requestMetrics(app, actor, project, { period });
      expect(series.length).toBe(points);
      expect(Date.parse(series[1]!.t) - Date.parse(series[0]!.t)).toBe(width * 60_000);
    }
  });

  test("do not change after a repeated flush, and add the counts of another process", async () => {
    const [one, other] = [new RequestRecorder(app), new RequestRecorder(app)];
    const total = async () => (await requestMetrics(app, actor, project, { period: "5m" })).requests;
    one.observed(environment, { status: 200, ms: 1 });
    await one.flush();
    await one.flush();
    expect(await total()).toBe(1);
    one.observed(environment, { status: 200, ms: 1 });
    other.observed(environment, { status: 200, ms: 1 });
    await Promise.all([one.flush(), one.flush(), other.flush()]);
    expect(await total()).toBe(3);
    clock.advance(60_000);
    one.observed(environment, { status: 200, ms: 1 });
    await one.stop();
    expect(await total()).toBe(4);
  });

  test("are stored for other environments when one is deleted", async () => {
    const recorder = new RequestRecorder(app);
    recorder.observed("99999999-9999-4999-8999-999999999999", { status: 200, ms: 1 });
    recorder.observed(environment, { status: 200, ms: 1 });
    await recorder.flush();
    expect((await requestMetrics(app, actor, project, { period: "5m" })).requests).toBe(1);
  });

  test("are stored by a later flush after a failed write", async () => {
    let isDown = true;
    const recorder = new RequestRecorder({
      ...app,
      get db() {
        if (isDown) throw new Error("the database is down");
        return db;
      },
    });
    recorder.observed(environment, { status: 200, ms: 1 });
    await expect(recorder.flush()).rejects.toThrow("down");
    isDown = false;
    await recorder.flush();
    expect((await requestMetrics(app, actor, project, { period: "5m" })).requests).toBe(1);
  });
});

describe("an app's health", () => {
  const health = () => appHealth(app, actor, project);
  const deploy = async (status: "live" | "failed") => {
    const { id } = await db
      .insertInto("deployments")
      .values({
        project_id: project,
        environment_id: environment,
        number: ++made,
        status,
        trigger_kind: "api",
        trigger_actor: "{}",
        steps: "[]",
        finished_at: clock.now(),
      })
      .returning("id")
      .executeTakeFirstOrThrow();
    if (status === "live") {
      await db
        .updateTable("environments")
        .set({ live_deployment_id: id })
        .where("id", "=", environment)
        .execute();
    }
  };

  test("follows the last deployment while there are no requests", async () => {
    expect(await health()).toEqual({
      status: "unknown",
      source: "deployment",
      error_rate: null,
      checked_at: clock.now().toISOString(),
    });
    await deploy("failed");
    expect((await health()).status).toBe("down");
    await deploy("live");
    expect(await health()).toMatchObject({ status: "healthy", source: "deployment" });
    await deploy("failed");
    expect((await health()).status).toBe("healthy");
    await db
      .updateTable("environments")
      .set({ asleep_since: clock.now() })
      .where("id", "=", environment)
      .execute();
    expect((await health()).status).toBe("asleep");
  });

  test("is that of the requested environment", async () => {
    await deploy("live");
    const [{ id }] = (await db
      .insertInto("environments")
      .values({
        project_id: project,
        name: "staging",
        kind: "staging",
        branch: "main",
        host_label: `staging-${project}`,
        size: "small",
      })
      .returning("id")
      .execute()) as [{ id: string }];
    expect((await appHealth(app, actor, project, id)).status).toBe("unknown");
    expect((await health()).status).toBe("healthy");
  });

  test.each([
    [0, "healthy"],
    [4, "healthy"],
    [5, "degraded"],
    [49, "degraded"],
    [50, "down"],
  ])("with %i errors in 100 responses is %s for five minutes", async (errors, status) => {
    await deploy("live");
    const recorder = new RequestRecorder(app);
    for (let n = 0; n < 100; n += 1)
      recorder.observed(environment, { status: n < errors ? 500 : 200, ms: 1 });
    await recorder.flush();
    expect(await health()).toMatchObject({ status, source: "traffic", error_rate: errors / 100 });
    clock.advance(5 * 60_000);
    expect(await health()).toMatchObject({ status: "healthy", source: "deployment" });
  });
});
