import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, onTestFinished, test } from "vitest";
import { eventually, expectRefusal, type Sandbox } from "./support/answers.ts";
import {
  createSandbox,
  deleteSandbox,
  exec,
  getSandbox,
  output,
  readFile,
  server,
  streamExec,
  writeFile,
} from "./support/fixtures.ts";
import { machinesOf } from "./support/host-state.ts";

afterEach(() => server.start());

const snapshots = () => {
  const directory = join(server.dataDir, "snapshots");
  return existsSync(directory) ? readdirSync(directory) : [];
};
const machinesFor = ({ id }: { id: string }) =>
  machinesOf(server.dataDir).filter(({ spec }) => spec.hostname === id.replace("_", "-"));

/** Lists the machines with an owner, without pooled machines. */
const listOwned = () => machinesOf(server.dataDir).filter(({ spec }) => spec.hostname !== "kontor");

/** Forks a sandbox, and deletes the clones when the test ends. */
async function fork(id: string, input: Record<string, unknown> = {}): Promise<Sandbox[]> {
  const made = await server.api("POST", `/v1/sandboxes/${id}/fork`, { body: input });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  const { items } = made.body as { items: Sandbox[] };
  for (const clone of items) onTestFinished(() => deleteSandbox(clone.id));
  return items;
}

/** Command that counts in a shell variable, so that only its memory has the count. */
const counter = `setsid bash -c 'n=0; while :; do n=$((n + 1)); echo $n >> /workspace/counts; sleep 0.02; done' >/dev/null 2>&1 &
  until [ -s /workspace/counts ]; do sleep 0.01; done`;

/** Checks that the count continued without a gap or a repetition. */
async function expectCounting(id: string): Promise<void> {
  const counts = async () => (await output(id, "cat /workspace/counts")).split("\n").map(Number);
  const before = (await counts()).length;
  const after = await eventually(counts, (numbers) => numbers.length > before + 2);
  expect(after).toEqual(after.map((_, index) => index + 1));
}

test("five clones and their source continue independently from the state at the fork", async () => {
  const source = await createSandbox({
    env: { OWN: "mine", BOTH: "source" },
    timeout_seconds: 300,
    metadata: { a: "b" },
    preview_auth: true,
  });
  await exec(source.id, counter);
  await writeFile(source.id, "/workspace/kept", "common");
  const clones = await fork(source.id, { count: 5, env: { BOTH: "clone" } });
  expect(clones).toHaveLength(5);
  const facts = "hostname; cat /etc/hostname /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1";
  const said = await Promise.all(
    [source, ...clones].map(async ({ id }) => (await output(id, facts)).split("\n")),
  );
  for (const what of [0, 1, 2, 3]) expect(new Set(said.map((lines) => lines[what])).size).toBe(6);
  for (const [index, clone] of clones.entries()) {
    expect(clone).toEqual(await getSandbox(clone.id));
    expect(clone).toMatchObject({
      status: "running",
      transition: null,
      forked_from: source.id,
      metadata: { a: "b" },
      preview_auth_token: expect.any(String),
    });
    expect(said[index + 1]?.[0]).toBe(clone.id.replace("_", "-"));
    expect(await output(clone.id, "cat kept; echo; echo $OWN $BOTH $KONTOR_SANDBOX_ID")).toBe(
      `common\nmine clone ${clone.id}`,
    );
    await writeFile(clone.id, "/workspace/kept", clone.id);
  }
  expect(new Set([source, ...clones].map((one) => one["preview_auth_token"])).size).toBe(6);
  for (const { id } of [source, ...clones]) await expectCounting(id);
  expect((await readFile(source.id, "/workspace/kept")).body.content).toBe(
    Buffer.from("common").toString("base64"),
  );
  await deleteSandbox(source.id);
  for (const { id } of clones) {
    await expectCounting(id);
    expect(await output(id, "cat kept")).toBe(id);
  }
  expect(snapshots()).toEqual([]);
}, 180_000);

test("after a fork, connections inside each machine continue, outside connections end, and servers serve on", async () => {
  const source = await createSandbox({ network: "restricted" });
  const serve = `use IO::Socket::INET; my $s = IO::Socket::INET->new(Listen => 5, LocalPort => 8000, ReuseAddr => 1);
    $SIG{CHLD} = "IGNORE"; while (1) { my $c = $s->accept or next; fork and next; while (<$c>) { print $c "echo $_"; $c->flush } exit }`;
  const talk = `exec 3<>/dev/tcp/127.0.0.1/8000 || exit; while echo ping >&3 && read -r line <&3; do echo "$line" >> /workspace/talk; sleep 0.05; done`;
  const leave = "exec 3<>/dev/tcp/10.0.0.1/3128 || exit; echo up > up; cat <&3; echo over > over";
  await writeFile(source.id, "/workspace/serve.pl", serve);
  await exec(
    source.id,
    `setsid perl serve.pl >/dev/null 2>&1 & sleep 0.5
     setsid bash -c '${talk}' >/dev/null 2>&1 & setsid bash -c '${leave}' >/dev/null 2>&1 &
     until [ -s talk ] && [ -s up ]; do sleep 0.02; done`,
  );
  const [clone] = await fork(source.id);
  for (const id of [source.id, clone?.id ?? ""]) {
    const lines = async () => Number(await output(id, "wc -l < talk"));
    const before = await lines();
    await eventually(lines, (now) => now > before + 2);
    expect(await output(id, "exec 3<>/dev/tcp/127.0.0.1/8000; echo new >&3; head -1 <&3")).toBe("echo new");
    expect(await output(id, "until [ -s over ]; do sleep 0.05; done; cat over")).toBe("over");
  }
});

test("background commands continue in source and clones; a fork interrupts a running exec with an error", async () => {
  const source = await createSandbox();
  const command = "for n in $(seq 1 150); do echo $n; sleep 0.02; done";
  const started = await server.api("POST", `/v1/sandboxes/${source.id}/commands`, { body: { command } });
  const stream = streamExec(source.id, { command: "touch stream; sleep 60" });
  const kinds = Array.fromAsync(stream, ({ kind, code }) => `${kind} ${code ?? ""}`);
  await exec(source.id, "until [ -e stream ]; do sleep 0.01; done");
  const [clone] = await fork(source.id);
  expect(await kinds).toEqual(["exec_started ", "error interrupted_by_snapshot"]);
  for (const id of [source.id, clone?.id ?? ""]) {
    const path = `/v1/sandboxes/${id}/commands/${started.body.id}`;
    const ended = await eventually(
      () => server.api("GET", path),
      ({ body }) => body.status !== "running",
    );
    expect(ended.body).toMatchObject({ status: "exited", exit_code: 0 });
    const { chunks } = (await server.api("GET", `${path}/logs`)).body;
    const text = chunks.map(({ data }: { data: string }) => Buffer.from(data, "base64")).join("");
    expect(text).toBe(Array.from({ length: 150 }, (_, index) => `${index + 1}\n`).join(""));
    const listed = await server.api("GET", `/v1/sandboxes/${id}/commands`);
    expect(listed.body.items).toMatchObject([{ id: started.body.id }]);
  }
});

test("serves calls to the source while the source is forked", async () => {
  const source = await createSandbox();
  let isForked = false;
  const calls = (async () => {
    const said: unknown[] = [];
    while (!isForked) said.push((await readFile(source.id, "/etc/hostname")).status);
    return said;
  })();
  await fork(source.id, { count: 2 });
  isForked = true;
  expect(new Set(await calls)).toEqual(new Set([200]));
});

test("forks a paused sandbox twice from its snapshot, and the source stays paused and can be resumed", async () => {
  const source = await createSandbox({ timeout_seconds: 300 });
  await exec(source.id, counter);
  const paused = await server.api("POST", `/v1/sandboxes/${source.id}/pause`);
  expect(paused.status).toBe(200);
  const clones = [...(await fork(source.id)), ...(await fork(source.id, { count: 2 }))];
  for (const { id } of clones) await expectCounting(id);
  expect(await getSandbox(source.id)).toMatchObject({ status: "paused", transition: null });
  expect(snapshots()).toEqual([paused.body.snapshot_id]);
  expect((await server.api("POST", `/v1/sandboxes/${source.id}/resume`)).status).toBe(200);
  await expectCounting(source.id);
});

test("a repeated Idempotency-Key creates no more clones, and returns the first clones without tokens", async () => {
  const source = await createSandbox({ preview_auth: true });
  const call = { body: { count: 2 }, headers: { "idempotency-key": `fork-${source.id}` } };
  const [first, second] = [
    await server.api("POST", `/v1/sandboxes/${source.id}/fork`, call),
    await server.api("POST", `/v1/sandboxes/${source.id}/fork`, call),
  ];
  const ids = (first.body.items as Sandbox[]).map(({ id }) => id);
  for (const id of ids) onTestFinished(() => deleteSandbox(id));
  expect((second.body.items as Sandbox[]).map(({ id }) => id)).toEqual(ids);
  expect((second.body.items as Sandbox[])[0]).toMatchObject({ preview_auth_token: null });
});

test("refuses to fork a terminated sandbox", async () => {
  const source = await createSandbox();
  await deleteSandbox(source.id);
  const refused = await server.api("POST", `/v1/sandboxes/${source.id}/fork`, { body: {} });
  expectRefusal(refused, 409, "sandbox_terminated");
});

/** Takes a snapshot of a sandbox, and deletes the snapshot when the test ends. */
async function keep(id: string, input: Record<string, unknown> = {}): Promise<{ id: string }> {
  const kept = await server.api("POST", `/v1/sandboxes/${id}/snapshots`, { body: input });
  expect(kept.status, JSON.stringify(kept.body)).toBe(201);
  onTestFinished(async () => {
    await server.api("DELETE", `/v1/sandboxes/snapshots/${kept.body.id}`);
  });
  return kept.body as { id: string };
}

const begin = { template: undefined, timeout_seconds: 300 };

test("creates sandboxes from a snapshot after the snapshot's source continued and was deleted", async () => {
  const source = await createSandbox({ env: { OWN: "mine" }, timeout_seconds: 300 });
  await exec(source.id, counter);
  await writeFile(source.id, "/workspace/kept", "prepared");
  const name = `base-${source.id.slice(4)}`;
  const snapshot = await keep(source.id, { name });
  expect(snapshots()).toEqual([snapshot.id]);
  await writeFile(source.id, "/workspace/kept", "changed");
  await expectCounting(source.id);
  await deleteSandbox(source.id);
  await server.kill9();
  await server.start();
  const boxes = [
    await createSandbox({ ...begin, snapshot: name }),
    await createSandbox({ ...begin, snapshot: snapshot.id, network: "off" }),
  ];
  for (const box of boxes) {
    expect(box).toMatchObject({ snapshot_id: snapshot.id, template: "debian-12" });
    await expectCounting(box.id);
    expect(await output(box.id, "cat kept; echo; echo $OWN; hostname")).toBe(
      `prepared\nmine\n${box.id.replace("_", "-")}`,
    );
    await writeFile(box.id, "/workspace/kept", box.id);
  }
  const gone = await server.api("DELETE", `/v1/sandboxes/snapshots/${snapshot.id}`);
  expect(gone.status).toBe(204);
  for (const { id } of boxes) {
    await expectCounting(id);
    expect(await output(id, "cat kept")).toBe(id);
  }
  await eventually(
    async () => snapshots(),
    (left) => left.length === 0,
  );
}, 180_000);

test("detects that a snapshot is damaged, and refuses the snapshot from then on", async () => {
  const source = await createSandbox();
  const snapshot = await keep(source.id);
  const file = join(server.dataDir, "snapshots", snapshot.id, "pages.img");
  const bytes = readFileSync(file);
  bytes[bytes.length >> 1] = (bytes[bytes.length >> 1] ?? 0) ^ 1;
  writeFileSync(file, bytes);
  const create = () => server.api("POST", "/v1/sandboxes", { body: { snapshot: snapshot.id } });
  expectRefusal(await create(), 409, "snapshot_damaged");
  expectRefusal(await create(), 409, "snapshot_damaged");
  expect((await server.api("GET", `/v1/sandboxes/snapshots/${snapshot.id}`)).body.status).toBe("damaged");
  expect(await output(source.id, "echo unharmed")).toBe("unharmed");
});

test.each(["checkpoint.written", "checkpoint.stored", "snapshot.written", "snapshot.committed"])(
  "after kill -9 at %s the sandbox runs, with one complete snapshot or none",
  async (point) => {
    const source = await createSandbox({ timeout_seconds: 1800 });
    await exec(source.id, counter);
    await killedAt(point, `/v1/sandboxes/${source.id}/snapshots`, {});
    const { items } = (await server.api("GET", "/v1/sandboxes/snapshots")).body as {
      items: { id: string }[];
    };
    for (const { id } of items)
      onTestFinished(async () => void (await server.api("DELETE", `/v1/sandboxes/snapshots/${id}`)));
    expect(items).toHaveLength(point === "snapshot.committed" ? 1 : 0);
    await eventually(
      async () => snapshots().toSorted().join(),
      (left) => left === items.map(({ id }) => id).join(),
    );
    await expectCounting(source.id);
    for (const { id } of items) await expectCounting((await createSandbox({ ...begin, snapshot: id })).id);
  },
  180_000,
);

/** Sends a call to a server that is killed at a named point of the call, and starts the next server. */
async function killedAt(point: string, path: string, body: Record<string, unknown>): Promise<void> {
  await server.dieAt(point, () => expect(server.api("POST", path, { body })).rejects.toThrow("fetch failed"));
}

const whileForking = [
  "clone.reserved",
  "checkpoint.disconnected",
  "checkpoint.paused",
  "checkpoint.written",
  "checkpoint.stored",
  "clone.written",
  "restore.started",
  "clone.restored",
  "clone.committed",
];

test.each(whileForking)(
  "after kill -9 at %s the source runs, with all of its clones or none",
  async (point) => {
    const source = await createSandbox({ timeout_seconds: 1800 });
    await exec(source.id, counter);
    await killedAt(point, `/v1/sandboxes/${source.id}/fork`, { count: 2 });
    const { items } = (await server.api("GET", "/v1/sandboxes?status=running")).body as { items: Sandbox[] };
    const clones = items.filter((one) => one["forked_from"] === source.id);
    for (const { id } of clones) onTestFinished(() => deleteSandbox(id));
    expect(clones).toHaveLength(point === "clone.committed" ? 2 : 0);
    await eventually(
      async () => ({ machines: listOwned().length, snapshots: snapshots().length }),
      (left) => left.machines === 1 + clones.length && left.snapshots === 0,
    );
    expect(machinesFor(source)).toHaveLength(1);
    for (const { id } of [source, ...clones]) await expectCounting(id);
    const [clone] = await fork(source.id);
    await expectCounting(clone?.id ?? "");
  },
  180_000,
);
