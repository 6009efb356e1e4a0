import { expect, test } from "vitest";
import { DomainError } from "#lib/errors.ts";
import type { CommandRecord } from "#machines/host/guest.ts";
import { testDatabase } from "../../../test/harness.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { getCommand, killCommand, list, currentState, startCommand, writeInput } from "./commands.ts";
import { followLogs, readLogs } from "./logs.ts";
import { CommandStart, type LogEvent } from "./schema.ts";
import { findCommand } from "./store.ts";

const { db } = await testDatabase();
const host = await testHost(db);
// Machines use the host's time; a clock ahead of it puts commands in the past.
host.clock.set(new Date(Date.now() + 3_600_000));
const { actor } = await personWithTier(db, "enterprise");
const stranger = await personWithTier(db, "enterprise");

const sandbox = async () => (await createSandbox(host.app, actor, createInput())).id;
const start = (id: string, command: string, more: object = {}) =>
  startCommand(host.app, actor, id, { command, ...more });
const get = (id: string, command: string) => getCommand(host.app, actor, id, command);
const logs = async (id: string, command: string, offset = 0, limit = 1000) => {
  const answer = await readLogs(host.app, actor, id, command, { offset, limit });
  return {
    ...answer,
    text: answer.chunks.map(({ data }) => Buffer.from(data, "base64").toString()).join(""),
  };
};
const waitForEnd = async (id: string, command: string) => {
  await expect.poll(async () => (await get(id, command)).status, { timeout: 10_000 }).not.toBe("running");
  return get(id, command);
};
const code = (work: Promise<unknown>) =>
  work.then(
    () => "none",
    (error: unknown) => (error instanceof DomainError ? `${error.status} ${error.code}` : error),
  );

async function follow(id: string, command: string, offset = 0, take = Infinity): Promise<LogEvent[]> {
  const reader = new AbortController();
  const events: LogEvent[] = [];
  for await (const event of (await followLogs(host.app, actor, id, command, offset))(reader.signal)) {
    events.push(event);
    if (events.length >= take) break;
  }
  reader.abort();
  return events;
}

const textOf = (events: LogEvent[]) =>
  events
    .map(({ data }) => (data.kind === "exec_chunk" ? Buffer.from(data.data, "base64").toString() : ""))
    .join("");

test("runs a command in the background, and returns its record, output and end", async () => {
  const id = await sandbox();
  const started = await start(id, 'echo "$A"; echo err >&2; read line; exit 4', {
    env: { A: "a" },
    tag: "web",
  });
  expect(started).toMatchObject({
    id: expect.stringMatching(/^cmd_[a-z0-9]{1,40}$/),
    status: "running",
    pid: expect.any(Number),
    exit_code: null,
    ended_at: null,
    tag: "web",
  });
  await expect.poll(async () => (await get(id, started.id)).output_bytes).toBe(6);
  expect(await writeInput(host.app, actor, id, started.id, { data: "Cg==", eof: true })).toEqual({
    bytes_written: 1,
  });
  expect(await waitForEnd(id, started.id)).toMatchObject({ status: "exited", exit_code: 4, output_bytes: 6 });
  expect(await logs(id, started.id)).toMatchObject({ text: "a\nerr\n", next_offset: 6, dropped_bytes: 0 });
  expect(await logs(id, started.id, 1, 2)).toMatchObject({ text: "\ne", next_offset: 3 });
  expect(await code(writeInput(host.app, actor, id, started.id, { data: "", eof: true }))).toBe(
    "409 command_not_reading",
  );
});

test("never shows an end time before the start time of a command", async () => {
  const id = await sandbox();
  const { id: command } = await start(id, "true");
  const isInOrder = ({ started_at, ended_at }: { started_at: string; ended_at: string | null }) =>
    ended_at !== null && ended_at >= started_at;
  expect(await waitForEnd(id, command)).toSatisfy(isInOrder);
  expect((await list(host.app, actor, id, { limit: 1 })).items[0]).toSatisfy(isInOrder);
  await terminateSandbox(host.app, actor, id);
  expect(await get(id, command)).toSatisfy(isInOrder);
});

test("ends a command on delete and returns its record, also when the delete is repeated", async () => {
  const id = await sandbox();
  const { id: command } = await start(id, "exec sleep 60");
  const killed = await killCommand(host.app, actor, id, command);
  expect(killed).toMatchObject({ status: "killed", exit_code: 143 });
  expect(await killCommand(host.app, actor, id, command)).toEqual(killed);
});

test("sends a follower the frames of exec, and continues after the last one when the follower reconnects", async () => {
  const id = await sandbox();
  const { id: command, pid } = await start(id, "echo one; read line; echo two; exit 5");
  const first = await follow(id, command, 0, 2);
  expect(first).toEqual([
    { id: 0, data: { kind: "exec_started", pid } },
    { id: 4, data: { kind: "exec_chunk", stream: "stdout", data: Buffer.from("one\n").toString("base64") } },
  ]);
  await writeInput(host.app, actor, id, command, { data: "Cg==", eof: false });
  const rest = await follow(id, command, first.at(-1)?.id);
  expect(textOf(rest)).toBe("two\n");
  expect(rest.at(-1)).toEqual({
    id: 8,
    data: { kind: "exec_exited", code: 5, duration_ms: expect.any(Number) },
  });
  expect(textOf(await follow(id, command))).toBe("one\ntwo\n");
});

test("releases a silent command when its reader disconnects", async () => {
  const id = await sandbox();
  const { id: command } = await start(id, "exec sleep 60");
  for (let readers = 0; readers < 20; readers += 1) {
    const reader = new AbortController();
    const events = (await followLogs(host.app, actor, id, command, 0))(reader.signal)[Symbol.asyncIterator]();
    await events.next();
    const silent = events.next();
    reader.abort();
    expect((await silent).done).toBe(true);
  }
});

test("reports in the last frame of a stream that the sandbox ended", async () => {
  const id = await sandbox();
  const { id: command } = await start(id, "echo up; exec sleep 60");
  const stream = await followLogs(host.app, actor, id, command, 0);
  const events: LogEvent[] = [];
  for await (const event of stream(new AbortController().signal)) {
    events.push(event);
    if (event.data.kind === "exec_chunk") await terminateSandbox(host.app, actor, id);
  }
  expect(events.at(-1)?.data).toMatchObject({ kind: "error", code: "sandbox_terminated" });
});

test("keeps the last known state of a command after its sandbox has ended, and reports `lost` if its end is unknown", async () => {
  const id = await sandbox();
  const [seen, unseen] = [await start(id, "exit 3"), await start(id, "exec sleep 60", { tag: "t" })];
  const record = await waitForEnd(id, seen.id);
  await terminateSandbox(host.app, actor, id);
  expect(await get(id, seen.id)).toEqual(record);
  expect(await get(id, unseen.id)).toEqual({ ...unseen, status: "lost" });
  expect(await killCommand(host.app, actor, id, unseen.id)).toMatchObject({ status: "lost" });
  expect((await list(host.app, actor, id, { limit: 10 })).items.map(({ status }) => status)).toEqual(
    expect.arrayContaining(["exited", "lost"]),
  );
  expect(await code(logs(id, seen.id))).toBe("409 sandbox_terminated");
});

test("lists all commands, newest first, in pages, each in its current state", async () => {
  const id = await sandbox();
  const started: string[] = [];
  for (let index = 0; index < 5; index += 1) {
    host.clock.advance(1000);
    started.push((await start(id, `exit ${index}`)).id);
  }
  await Promise.all(started.map((command) => waitForEnd(id, command)));
  const listed: [string, number | null][] = [];
  let cursor: string | undefined;
  do {
    const page = await list(host.app, actor, id, { limit: 2, cursor });
    listed.push(...page.items.map((one): [string, number | null] => [one.id, one.exit_code]));
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined);
  expect(listed).toEqual(started.map((command, index) => [command, index]).toReversed());
  const first = await list(host.app, actor, id, { limit: 2 });
  const other = await sandbox();
  expect(await code(list(host.app, actor, other, { limit: 2, cursor: first.next_cursor ?? "" }))).toBe(
    "400 invalid_request",
  );
});

test("finds a command in its machine when its row was never written", async () => {
  const id = await sandbox();
  const { id: command } = await start(id, "exec sleep 60");
  await db.deleteFrom("sandbox_commands").where("id", "=", command).execute();
  expect(await get(id, command)).toMatchObject({ status: "running", command: "exec sleep 60" });
  expect((await list(host.app, actor, id, { limit: 10 })).items).toMatchObject([{ id: command }]);
  await terminateSandbox(host.app, actor, id);
  expect(await get(id, command)).toMatchObject({ status: "lost" });
});

test("hides commands from other owners, other sandboxes and invented ids", async () => {
  const [id, other] = [await sandbox(), await sandbox()];
  const { id: command } = await start(id, "exec sleep 60");
  expect(await code(getCommand(host.app, stranger.actor, id, command))).toBe("404 sandbox_not_found");
  for (const unknown of ["cmd_none", "", "x", "ctx_internal"]) {
    expect(await code(get(id, unknown))).toBe("404 command_not_found");
    expect(await code(killCommand(host.app, actor, id, unknown))).toBe("404 command_not_found");
    expect(await code(logs(id, unknown))).toBe("404 command_not_found");
    expect(await code(followLogs(host.app, actor, id, unknown, 0))).toBe("404 command_not_found");
    expect(await code(writeInput(host.app, actor, id, unknown, { data: "", eof: true }))).toBe(
      "404 command_not_found",
    );
  }
  expect(await code(get(other, command))).toBe("404 command_not_found");
});

test("reports why a command cannot be started, and leaves no record", async () => {
  const id = await sandbox();
  expect(await code(start(id, "true", { cwd: "/no/such/directory" }))).toBe("400 exec_failed");
  expect((await list(host.app, actor, id, { limit: 10 })).items).toEqual([]);
});

test("lists the hosts that the machine was denied while the command ran", async () => {
  const { id, machine_id: machine } = await createSandbox(host.app, actor, createInput());
  const deny = (target: string) =>
    host.app.machines.denials.add(machine ?? "", { target, code: "not_allowed" });
  const now = host.clock.now().getTime();
  host.clock.set(new Date(now - 1000));
  deny("before.test:443");
  host.clock.set(new Date(now));
  const { id: command } = await start(id, "read line");
  deny("during.test:443");
  expect((await get(id, command)).egress_denied).toEqual(["during.test:443"]);
  expect((await list(host.app, actor, id, { limit: 1 })).items[0]?.egress_denied).toEqual([
    "during.test:443",
  ]);
  expect(await killCommand(host.app, actor, id, command)).not.toHaveProperty("egress_denied", [
    "before.test:443",
  ]);
});

test("runs a command with args, a user, a complete stdin and a timeout", async () => {
  const id = await sandbox();
  const begin = (body: object) => startCommand(host.app, actor, id, CommandStart.parse(body));
  const stdin = Buffer.from("hello").toString("base64");
  const upper = await begin({ args: ["tr", "a-z", "A-Z"], stdin });
  expect(upper.command).toBe("tr a-z A-Z");
  expect(await waitForEnd(id, upper.id)).toMatchObject({ status: "exited", exit_code: 0 });
  expect((await logs(id, upper.id)).text).toBe("HELLO");
  const late = await begin({ command: "sleep 600", timeout_seconds: 1 });
  await expect.poll(async () => (await get(id, late.id)).exit_code, { timeout: 30_000 }).toBe(124);
  await expect(begin({ command: "true", user: "no-such-user" })).rejects.toMatchObject({
    code: "exec_failed",
  });
  for (const body of [{}, { command: "true", args: ["true"] }, { command: "x", stdin: "A".repeat(87_388) }]) {
    expect(CommandStart.safeParse(body).success).toBe(false);
  }
});

test("stores that a command was killed out of memory, and emits one event for it", async () => {
  const id = await sandbox();
  const { id: command } = await start(id, "exit 1");
  const row = await findCommand(db, id, command);
  const record: CommandRecord = {
    id: command,
    tag: "",
    text: "exit 1",
    status: "exited",
    pid: 7,
    exitCode: null,
    signal: 9,
    timedOut: false,
    outOfMemory: true,
    startedAt: new Date(),
    endedAt: new Date(),
    outputBytes: 0,
    droppedBytes: 0,
    terminal: null,
  } as const;
  const killed = { status: "exited", exit_code: 137, killed_by: "out_of_memory" };
  expect(await currentState(host.app, id, row, record)).toMatchObject(killed);
  expect(await currentState(host.app, id, row, record)).toMatchObject(killed);
  await terminateSandbox(host.app, actor, id);
  expect(await get(id, command)).toMatchObject(killed);
  const events = await db
    .selectFrom("sandbox_events")
    .select(["event", "summary"])
    .where("sandbox_id", "=", id)
    .execute();
  expect(events.filter(({ event }) => event === "sandbox.out_of_memory")).toHaveLength(1);
});
