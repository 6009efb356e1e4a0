/** These tests use their own server without a pool, so that everything left after the last sandbox is an orphan. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { expectRefusal } from "../support/answers.ts";
import { traces } from "../support/host-state.ts";
import { type Server, startServer } from "../support/server.ts";

/** A directory with an mmdebstrap that always fails, as on a host without a mirror. */
const programs = mkdtempSync(join(tmpdir(), "kontor-e2e-programs-"));
let server: Server;

beforeAll(async () => {
  writeFileSync(join(programs, "mmdebstrap"), "#!/bin/sh\necho 'E: no mirror answered' >&2\nexit 1\n", {
    mode: 0o755,
  });
  server = await startServer({
    PATH: `${programs}:${process.env["PATH"]}`,
    KONTOR_POOL_SIZE: "0",
    KONTOR_POOL_MAX: "0",
  });
});
afterAll(async () => {
  await server?.destroy();
  rmSync(programs, { recursive: true });
});

async function createAndDelete(): Promise<void> {
  const made = await server.api("POST", "/v1/sandboxes", { body: { template: "debian-12" } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  const path = `/v1/sandboxes/${made.body.id}`;
  const ran = await server.api("POST", `${path}/exec`, {
    body: { command: "echo x > /workspace/f; sleep 600 & echo up" },
  });
  expect(ran.body.stdout).toBe("up\n");
  expect((await server.api("DELETE", path)).status).toBe(200);
}

test("ten created and deleted sandboxes leave no process, mount, loop device or file on the host", async () => {
  for (let round = 0; round < 5; round += 1) await Promise.all([createAndDelete(), createAndDelete()]);
  await expect
    .poll(() => traces(server.dataDir), { timeout: 30_000 })
    .toMatchObject({ processes: [], mounts: [], groups: [], loops: [], files: [], records: [] });
  // Two sandboxes ran while two earlier sandboxes were removed, so at most their closed namespaces wait for new
  // machines.
  const { namespaces, links, chains } = await traces(server.dataDir);
  expect(namespaces?.length).toBeLessThanOrEqual(4);
  expect(links).toHaveLength(namespaces?.length ?? 0);
  expect(chains?.length).toBeLessThanOrEqual(4 * 2);
});

test("reports why a template cannot be made, and creates sandboxes of other templates", async () => {
  const refused = await server.api("POST", "/v1/sandboxes", { body: { template: "python-3.12-bare" } });
  expectRefusal(refused, 503, "template_failed");
  expect(refused.body.detail).toContain("no mirror answered");
  expect(Number(refused.headers.get("retry-after"))).toBeGreaterThan(0);
  const { body: limits } = await server.api("GET", "/v1/sandboxes/limits");
  expect(limits.templates).toContainEqual(
    expect.objectContaining({ name: "python-3.12-bare", state: "failed" }),
  );
  await createAndDelete();
});
