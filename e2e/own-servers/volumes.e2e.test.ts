/** These tests use their own server without a pool and with two regions, one of them in a separate directory. */
import { existsSync, mkdtempSync, readdirSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { isSigned, startReceiver, type Receiver } from "@kontor/server/sandbox/testing/receiver.ts";
import type { Call, Reply } from "../support/api.ts";
import { base64, eventually, expectRefusal } from "../support/answers.ts";
import { machineProcesses, traces } from "../support/host-state.ts";
import { type Server, startServer } from "../support/server.ts";

const there = mkdtempSync(join(process.env["KONTOR_E2E_DATA"] ?? "/var/tmp", "kontor-e2e-region-"));
let server: Server;
let receiver: Receiver;

beforeAll(async () => {
  receiver = await startReceiver();
  server = await startServer({
    KONTOR_REGIONS: `eu-1=Here,us-1=There@${there}`,
    KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8",
    KONTOR_POOL_SIZE: "0",
    KONTOR_POOL_MAX: "0",
  });
});
afterAll(async () => {
  await receiver?.close();
  await server?.destroy();
  rmSync(there, { recursive: true });
});
afterEach(() => server.start());

interface Volume {
  id: string;
  name: string;
  region: string;
  status: string;
  sandbox_id: string | null;
  used_bytes: number;
}

async function must(status: number, method: string, path: string, call: Call = {}): Promise<Reply["body"]> {
  const reply = await server.api(method, path, call);
  expect(reply.status, JSON.stringify(reply.body)).toBe(status);
  return reply.body;
}

const tryCreate = (volume: string, more: object = {}) =>
  server.api("POST", "/v1/sandboxes", {
    body: { template: "debian-12", network: "off", timeout_seconds: 1800, volume, ...more },
  });

async function create(volume: string): Promise<string> {
  const made = await tryCreate(volume);
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  return made.body.id as string;
}

const end = (id: string) => must(200, "DELETE", `/v1/sandboxes/${id}`);
const exec = (id: string, command: string) =>
  must(200, "POST", `/v1/sandboxes/${id}/exec`, { body: { command, cwd: "/persist" } });

async function output(id: string, command: string): Promise<string> {
  const ran = await exec(id, command);
  expect(ran.exit_code, ran.stderr).toBe(0);
  return ran.stdout.trimEnd();
}

async function volumeNamed(name: string): Promise<Volume> {
  const { items } = await must(200, "GET", "/v1/sandboxes/volumes?limit=100");
  return items.find((volume: Volume) => volume.name === name);
}

/** Returns the paths of a volume's bytes in the regions' directories. */
function placesOf(id: string): string[] {
  const regions = [
    join(server.dataDir, "volumes/eu-1"),
    ...readdirSync(there).map((host) => join(there, host)),
  ];
  return regions
    .flatMap((region) => (existsSync(region) ? readdirSync(region).map((name) => join(region, name)) : []))
    .filter((path) => path.includes(id));
}

const imageBytes = (id: string) => statSync(join(placesOf(id)[0] ?? "", "volume.ext4")).blocks * 512;

test("files on a volume survive their sandbox, and the next sandbox reads them unchanged", async () => {
  const first = await create("kept");
  expect(await volumeNamed("kept")).toMatchObject({ status: "attached", sandbox_id: first, region: "eu-1" });
  expect(await output(first, "ls -A")).toBe("");
  await output(first, "mkdir -p a/b && printf text > a/b/file && chmod 600 a/b/file && ln -s b/file a/link");
  await must(200, "POST", `/v1/sandboxes/${first}/files`, {
    body: { path: "/persist/written", content: base64("by a call") },
  });
  await end(first);
  expect(await volumeNamed("kept")).toMatchObject({ status: "available", sandbox_id: null });

  const { id } = await volumeNamed("kept");
  const second = await create(id);
  expect(await output(second, "cat a/link; echo; stat -c %a a/b/file; cat written")).toBe(
    "text\n600\nby a call",
  );
  await end(second);
});

test("a full volume fails with ENOSPC in commands and file calls; deletions return space to the host", async () => {
  const { id: volume } = await must(201, "POST", "/v1/sandboxes/volumes", {
    body: { name: "full", size_gb: 1 },
  });
  const box = await create("full");
  const filling = await exec(box, "head -c 2G /dev/zero > zeros; stat -c %s zeros");
  expect(filling.stderr).toContain("No space left on device");
  expect(Number(filling.stdout)).toBeGreaterThanOrEqual(1024 ** 3);
  const content = base64(Buffer.alloc(1024 ** 2));
  const refused = await server.api("POST", `/v1/sandboxes/${box}/files`, {
    body: { path: "/persist/more", content },
  });
  expectRefusal(refused, 507, "disk_full");
  expect(await output(box, "echo room elsewhere > /workspace/file; cat /workspace/file")).toBe(
    "room elsewhere",
  );
  expect((await volumeNamed("full")).used_bytes).toBe(1024 ** 3);
  await output(box, "rm zeros; echo small > small");
  await end(box);
  await eventually(
    async () => imageBytes(volume),
    (bytes) => bytes < 50 * 1024 ** 2,
  );
  expect((await volumeNamed("full")).used_bytes).toBeLessThan(1024 ** 2);
});

test("attaches a volume to exactly one of twenty sandboxes that are created concurrently", async () => {
  const tries = await Promise.all(Array.from({ length: 20 }, () => tryCreate("wanted")));
  const made = tries.filter(({ status }) => status === 201);
  expect(made).toHaveLength(1);
  for (const reply of tries) if (reply.status !== 201) expectRefusal(reply, 409, "volume_in_use");
  const [first] = made;
  const id = (first?.body.id ?? "") as string;
  expect(await output(id, "echo mine > file; cat file")).toBe("mine");
  expect(await volumeNamed("wanted")).toMatchObject({ sandbox_id: id });
  await end(id);
});

test("a paused sandbox keeps its volume, and its processes keep their open files", async () => {
  const box = await create("paused");
  await output(
    box,
    `setsid bash -c 'n=0; exec 3>>counts; while :; do n=$((n + 1)); echo $n >&3; sleep 0.02; done' >/dev/null 2>&1 &
     until [ -s counts ]; do sleep 0.01; done`,
  );
  await must(200, "POST", `/v1/sandboxes/${box}/pause`);
  expect(await volumeNamed("paused")).toMatchObject({ status: "attached", sandbox_id: box });
  expectRefusal(await tryCreate("paused"), 409, "volume_in_use");
  expectRefusal(await server.api("DELETE", "/v1/sandboxes/volumes/paused"), 409, "volume_in_use");
  await server.kill9();
  await server.start();
  await must(200, "POST", `/v1/sandboxes/${box}/resume`);
  const counts = async () => (await output(box, "cat counts")).split("\n").map(Number);
  const before = (await counts()).length;
  const after = await eventually(counts, (numbers) => numbers.length > before + 2);
  expect(after).toEqual(after.map((_, index) => index + 1));

  await output(
    box,
    "setsid bash -c 'exec 4>gone; rm gone; echo up > up; exec sleep 600' >/dev/null 2>&1 & until [ -s up ]; do sleep 0.01; done",
  );
  const refused = await server.api("POST", `/v1/sandboxes/${box}/pause`);
  expectRefusal(refused, 409, "not_checkpointable");
  expect(refused.body).toMatchObject({ process: "sleep", file: "/persist/gone" });
  expect(await output(box, "pkill sleep; echo alive")).toBe("alive");
  await must(200, "POST", `/v1/sandboxes/${box}/pause`);
  await end(box);
  expect(await volumeNamed("paused")).toMatchObject({ status: "available" });
});

test("keeps synced data after kill -9 of the server and of every process of the machine", async () => {
  const box = await create("synced");
  await output(box, "echo kept > file; sync file; echo unsynced > other");
  await server.kill9();
  for (const pid of machineProcesses(server.dataDir)) {
    try {
      process.kill(pid, "SIGKILL");
    } catch {
      // The process ended with another process that was killed before.
    }
  }
  await server.start();
  await eventually(
    () => must(200, "GET", `/v1/sandboxes/${box}`),
    ({ status, termination_reason }) => status === "terminated" && termination_reason === "host_lost",
  );
  const next = await create("synced");
  expect(await output(next, "cat file")).toBe("kept");
  await end(next);
});

/** Command that prints the hash and the name of every file in the volume. */
const sums = "find . -type f -exec sha256sum {} + | sort";

async function makeFilledVolume(name: string): Promise<{ volume: Volume; sum: string }> {
  const box = await create(name);
  await output(
    box,
    "head -c 60000000 /dev/urandom > big; mkdir deep; echo small > deep/small; truncate -s 20M hole",
  );
  const sum = await output(box, sums);
  await end(box);
  return { volume: await volumeNamed(name), sum };
}

async function expectMoved({ volume, sum }: { volume: Volume; sum: string }): Promise<void> {
  const now = await eventually(
    () => volumeNamed(volume.name),
    ({ status }) => status === "available",
    90_000,
  );
  expect(now.region).toBe("us-1");
  const [place, ...others] = await eventually(
    async () => placesOf(volume.id),
    (places) => places.length === 1,
  );
  expect(others).toEqual([]);
  expect(place?.startsWith(there)).toBe(true);
  const made = await tryCreate(volume.name, { region: "eu-1" });
  expectRefusal(made, 400, "invalid_request");
  const box = await create(volume.name);
  expect(await must(200, "GET", `/v1/sandboxes/${box}`)).toMatchObject({ region: "us-1" });
  expect(await output(box, sums)).toBe(sum);
  await end(box);
}

test("a move copies a volume to the other region's directory, and emits an event to the feed and webhooks", async () => {
  const body = { url: receiver.url, event_types: ["volume.moved"] };
  const { secret } = await must(201, "POST", "/v1/sandboxes/webhooks", { body });
  const before = await makeFilledVolume("travels");
  expect(placesOf(before.volume.id)).toEqual([join(server.dataDir, "volumes/eu-1", before.volume.id)]);
  const path = "/v1/sandboxes/volumes/travels/move";
  expectRefusal(await server.api("POST", path, { body: { region: "mars" } }), 400, "invalid_request");
  expect(await must(202, "POST", path, { body: { region: "us-1" } })).toMatchObject({ status: "moving" });
  expectRefusal(await tryCreate("travels"), 409, "volume_moving");
  await expectMoved(before);

  const subject = { volume_id: before.volume.id, from: "eu-1", to: "us-1" };
  const detail = { ...subject, sha256: expect.any(String) };
  const { items } = await must(200, "GET", "/v1/sandboxes/events?event_type=volume.moved");
  expect(items).toMatchObject([{ event: "volume.moved", sandbox_id: null, outcome: "ok", detail }]);
  const [told] = await eventually(
    async () => receiver.received,
    (received) => received.length > 0,
  );
  expect(told?.json).toMatchObject({
    event: "volume.moved",
    data: { ...subject, sandbox_id: null, outcome: "ok", detail },
  });
  expect(told && isSigned(told, secret)).toBe(true);
}, 180_000);

test.each(["volume.copied", "volume.moved"])(
  "after kill -9 at %s the volume is complete in one region, and the next server completes the move",
  async (point) => {
    const before = await makeFilledVolume(point.replace(".", "-"));
    await server.dieAt(point, () =>
      must(202, "POST", `/v1/sandboxes/volumes/${before.volume.id}/move`, { body: { region: "us-1" } }),
    );
    await expectMoved(before);
  },
  180_000,
);

test("kill -9 during a move's copy loses no data of the volume", async () => {
  const before = await makeFilledVolume("midst");
  await must(202, "POST", `/v1/sandboxes/volumes/${before.volume.id}/move`, { body: { region: "us-1" } });
  // A copy of this size takes a fraction of a second, so the loop does not wait longer.
  while (placesOf(before.volume.id).length === 1) await sleep(1);
  await server.kill9();
  await server.start();
  await expectMoved(before);
}, 180_000);

test("removes a deleted volume's bytes from the host, and frees the volume's name", async () => {
  const box = await create("doomed");
  await output(box, "echo secret > file");
  expectRefusal(await server.api("DELETE", "/v1/sandboxes/volumes/doomed"), 409, "volume_in_use");
  await end(box);
  const { id } = await volumeNamed("doomed");
  expect(placesOf(id)).toHaveLength(1);
  await must(204, "DELETE", `/v1/sandboxes/volumes/${id}`);
  expect(placesOf(id)).toEqual([]);
  const again = await create("doomed");
  expect(await output(again, "ls -A")).toBe("");
  await end(again);
});

test("responds to another workspace's volume exactly as to a missing volume", async () => {
  const { id } = await must(201, "POST", "/v1/sandboxes/volumes", { body: { name: "mine" } });
  const team = await must(201, "POST", "/api/v1/teams", { body: { name: "The others" } });
  const { token } = await must(201, "POST", "/api/v1/api-tokens", {
    body: { name: "others", expires_in_days: 30, workspace: team.id },
  });
  const calls: [string, string, unknown?][] = [
    ["DELETE", "/v1/sandboxes/volumes/%"],
    ["POST", "/v1/sandboxes/volumes/%/move", { region: "us-1" }],
    ["POST", "/v1/sandboxes", { template: "debian-12", volume: "%" }],
  ];
  for (const [method, path, body] of calls) {
    const ask = (volume: string) =>
      server.api(method, path.replace("%", volume), {
        token,
        ...(body ? { body: JSON.parse(JSON.stringify(body).replace("%", volume)) } : {}),
      });
    const [theirs, unknown] = [await ask(id), await ask("vol_doesnotexist")];
    expectRefusal(theirs, 404, "volume_not_found");
    expect(theirs.body).toEqual(unknown.body);
  }
  expect((await server.api("GET", "/v1/sandboxes/volumes", { token })).body.items).toEqual([]);
});

test("leaves no mount and no loop device on the host after all tests", async () => {
  await expect
    .poll(() => traces(server.dataDir), { timeout: 30_000 })
    .toMatchObject({ processes: [], mounts: [], groups: [], loops: [], files: [], records: [] });
});
