import { expect, test } from "vitest";
import { eventually, expectRefusal } from "./support/answers.ts";
import { createSandbox, deleteSandbox, exec, server, tryExec } from "./support/fixtures.ts";

async function metrics(id: string, query = "") {
  const reply = await server.api("GET", `/v1/sandboxes/${id}/metrics${query}`);
  expect(reply.status).toBe(200);
  return reply.body;
}

test("reports one busy core as about 100 percent for any number of processes, with a sample every second", async () => {
  const box = await createSandbox();
  const load = tryExec(box.id, "while :; do :; done & while :; do :; done", { timeout_seconds: 5 });
  const busy = await eventually(
    () => metrics(box.id),
    ({ cpu, samples }) => samples.length >= 2 && cpu.usage_percent > 60,
  );
  expect(busy).toEqual({
    sandbox_id: box.id,
    sandbox_status: "running",
    as_of: expect.stringMatching(/Z$/),
    as_of_unix: Math.floor(Date.parse(busy.as_of) / 1000),
    sample_interval_seconds: 1,
    window_seconds: 60,
    cpu: { cores: 1, usage_cores: expect.any(Number), usage_percent: expect.any(Number) },
    memory: { limit_bytes: 1024 ** 3, usage_bytes: expect.any(Number), usage_percent: expect.any(Number) },
    disk: {
      limit_bytes: expect.any(Number),
      usage_bytes: expect.any(Number),
      usage_percent: expect.any(Number),
    },
    lifetime: { cpu_seconds: expect.any(Number), gb_seconds: expect.any(Number) },
    samples: expect.any(Array),
  });
  // The quota applies to periods of 100 ms, and two readings are never exactly a second apart.
  expect(busy.cpu.usage_percent).toBeLessThan(140);
  expect(busy.cpu.usage_cores).toBeCloseTo(busy.cpu.usage_percent / 100, 2);
  expect(busy.memory.usage_bytes).toBeGreaterThan(1024 ** 2);
  expect(busy.memory.usage_bytes).toBeLessThan(busy.memory.limit_bytes);
  for (const sample of busy.samples) {
    expect(sample).toEqual({
      t: expect.any(Number),
      cpu_percent: expect.any(Number),
      mem_bytes: expect.any(Number),
    });
  }
  const last = busy.samples.at(-1).t;
  const newer = await eventually(
    () => metrics(box.id, `?since=${last}`),
    ({ samples }) => samples.length > 0,
  );
  for (const { t } of newer.samples) expect(t).toBeGreaterThan(last);
  await load;
});

test("reports memory as the working set, without the file cache", async () => {
  const box = await createSandbox();
  await exec(box.id, "head -c 300M /dev/zero > /tmp/file; cat /tmp/file > /dev/null");
  const after = await eventually(
    () => metrics(box.id),
    ({ samples }) => samples.length >= 2,
  );
  expect(after.memory.usage_bytes).toBeLessThan(250 * 1024 ** 2);
});

test("the metrics of a terminated sandbox have null values, no samples, and the total use", async () => {
  const box = await createSandbox();
  await exec(box.id, "timeout 1 bash -c 'while :; do :; done'");
  await deleteSandbox(box.id);
  const ended = await metrics(box.id);
  expect(ended).toMatchObject({
    sandbox_status: "terminated",
    cpu: { cores: 1, usage_cores: null, usage_percent: null },
    memory: { limit_bytes: 1024 ** 3, usage_bytes: null, usage_percent: null },
    samples: [],
  });
  expect(ended.lifetime.cpu_seconds).toBeGreaterThan(0.3);
  expect(ended.lifetime.gb_seconds).toBeGreaterThan(0.9);
  expect((await metrics(box.id)).lifetime).toEqual(ended.lifetime);
});

test("refuses a `since` that is not a number", async () => {
  const box = await createSandbox();
  expectRefusal(await server.api("GET", `/v1/sandboxes/${box.id}/metrics?since=now`), 400, "invalid_request");
});
