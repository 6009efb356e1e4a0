import { afterEach, expect, test } from "vitest";
import { eventually, expectRefusal } from "./support/answers.ts";
import { createSandbox, deleteSandbox, getSandbox, server } from "./support/fixtures.ts";

afterEach(() => server.start());

interface Command {
  id: string;
  status: string;
  exit_code: number | null;
  output_bytes: number;
  [field: string]: unknown;
}

const path = (box: string, command = "") => `/v1/sandboxes/${box}/commands${command && `/${command}`}`;

async function start(box: string, command: string, more: Record<string, unknown> = {}): Promise<Command> {
  const started = await server.api("POST", path(box), { body: { command, ...more } });
  expect(started.status, JSON.stringify(started.body)).toBe(201);
  return started.body as Command;
}

async function poll(box: string, command: string): Promise<Command> {
  const got = await server.api("GET", path(box, command));
  expect(got.status, JSON.stringify(got.body)).toBe(200);
  return got.body as Command;
}

const waitForEnd = (box: string, command: string) =>
  eventually(
    () => poll(box, command),
    ({ status }) => status !== "running",
  );

async function logs(box: string, command: string, query = ""): Promise<string> {
  const got = await server.api("GET", `${path(box, command)}/logs?${query}`);
  expect(got.status, JSON.stringify(got.body)).toBe(200);
  return got.body.chunks.map(({ data }: { data: string }) => Buffer.from(data, "base64").toString()).join("");
}

interface LogEvent {
  id: number;
  frame: { kind: string; data?: string; code?: number | string; pid?: number };
}

/** Yields the events of a followed log, in the form that a browser reads. */
async function* follow(box: string, command: string, lastEventId?: number): AsyncGenerator<LogEvent> {
  const response = await fetch(`${server.baseUrl}${path(box, command)}/logs?follow=true`, {
    headers: {
      authorization: `Bearer ${server.token}`,
      ...(lastEventId === undefined ? {} : { "last-event-id": String(lastEventId) }),
    },
  });
  expect(response.headers.get("content-type")).toMatch(/^text\/event-stream/);
  let rest = "";
  for await (const text of response.body!.pipeThrough(new TextDecoderStream())) {
    const blocks = (rest + text).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const [, id, data] = /^id: (\d+)\ndata: (.*)$/.exec(block) ?? [];
      if (data !== undefined) yield { id: Number(id), frame: JSON.parse(data) };
    }
  }
}

const textOf = (events: LogEvent[]) =>
  events.map(({ frame }) => Buffer.from(frame.data ?? "", "base64").toString()).join("");

test("a command continues after its caller disconnects, and can be polled, read by offset, and listed", async () => {
  const box = await createSandbox({ env: { WHO: "sandbox" } });
  const command = await start(box.id, 'echo "$WHO $MORE"; echo err >&2; pwd; exit 3', {
    env: { MORE: "more" },
    cwd: "/tmp",
    tag: "t",
  });
  expect(await waitForEnd(box.id, command.id)).toMatchObject({ status: "exited", exit_code: 3, tag: "t" });
  expect(await logs(box.id, command.id)).toContain("sandbox more\n");
  expect(await logs(box.id, command.id, "offset=8&limit=4")).toBe("more");
  const listed = await server.api("GET", path(box.id));
  expect(listed.body).toMatchObject({ items: [{ id: command.id, status: "exited" }], next_cursor: null });
});

test("commands and their output survive kill -9 of the server, and a follower resumes at its position", async () => {
  const box = await createSandbox({ timeout_seconds: 1800 });
  const command = await start(box.id, "for n in $(seq 1 200); do echo line $n; sleep 0.05; done; exit 5");
  const before: LogEvent[] = [];
  const broken = (async () => {
    for await (const event of follow(box.id, command.id)) {
      before.push(event);
      if (before.length === 4) await server.kill9();
    }
  })();
  await expect(broken).rejects.toThrow(/terminated|closed/);
  await server.start();
  expect(await poll(box.id, command.id)).toMatchObject({ status: "running", pid: command["pid"] });
  const after = await Array.fromAsync(follow(box.id, command.id, before.at(-1)?.id));
  const lines = Array.from({ length: 200 }, (_, n) => `line ${n + 1}\n`).join("");
  expect(textOf(before) + textOf(after)).toBe(lines);
  expect(after.at(-1)).toEqual({
    id: lines.length,
    frame: { kind: "exec_exited", code: 5, duration_ms: expect.any(Number) },
  });
});

test("a command reads its stdin, and a delete kills the command's process group", async () => {
  const box = await createSandbox();
  const cat = await start(box.id, "exec cat");
  const write = (body: unknown) => server.api("POST", `${path(box.id, cat.id)}/stdin`, { body });
  expect((await write({ data: Buffer.from("in").toString("base64") })).body).toEqual({ bytes_written: 2 });
  expect((await write({ eof: true })).status).toBe(200);
  await waitForEnd(box.id, cat.id);
  expect(await logs(box.id, cat.id)).toBe("in");
  expectRefusal(await write({ data: "" }), 409, "command_not_reading");

  const group = await start(box.id, "sleep 7654 & sleep 7654 & wait");
  const killed = await server.api("DELETE", path(box.id, group.id));
  expect(killed).toMatchObject({ status: 200, body: { status: "killed", exit_code: 143 } });
  const left = await start(box.id, "pgrep -fc '^sleep 7654' || true");
  await waitForEnd(box.id, left.id);
  expect(await logs(box.id, left.id)).toBe("0\n");
  const stubborn = await start(box.id, "trap '' TERM; echo up; while :; do sleep 0.1; done");
  await eventually(
    () => poll(box.id, stubborn.id),
    ({ output_bytes }) => output_bytes > 0,
  );
  await server.api("DELETE", path(box.id, stubborn.id));
  expect(await waitForEnd(box.id, stubborn.id)).toMatchObject({ status: "killed", exit_code: 137 });
});

test("drops a command's oldest output beyond 16 MiB, and keeps the offsets of the rest", async () => {
  const box = await createSandbox();
  const command = await start(box.id, "seq -f %015.0f 0 1499999");
  expect(await waitForEnd(box.id, command.id)).toMatchObject({ output_bytes: 24_000_000 });
  const got = await server.api("GET", `${path(box.id, command.id)}/logs?offset=0&limit=16`);
  expect(got.body.dropped_bytes).toBeGreaterThan(24_000_000 - 16 * 1024 ** 2);
  expect(got.body.chunks[0].offset).toBe(got.body.dropped_bytes);
  expect(await logs(box.id, command.id, "offset=23999984")).toBe("000000001499999\n");
});

test("a command continues across pause and resume, and its followers receive all of its output", async () => {
  const box = await createSandbox({ timeout_seconds: 1800 });
  const command = await start(box.id, "for n in $(seq 1 60); do echo $n; sleep 0.1; done");
  await eventually(
    () => poll(box.id, command.id),
    ({ output_bytes }) => output_bytes > 4,
  );
  const paused = await server.api("POST", `/v1/sandboxes/${box.id}/pause`);
  expect(paused.status, JSON.stringify(paused.body)).toBe(200);
  expect(await poll(box.id, command.id)).toMatchObject({ status: "running" });
  expect((await server.api("POST", `/v1/sandboxes/${box.id}/resume`)).status).toBe(200);
  expect(await waitForEnd(box.id, command.id)).toMatchObject({ status: "exited", exit_code: 0 });
  expect(await logs(box.id, command.id)).toBe(Array.from({ length: 60 }, (_, n) => `${n + 1}\n`).join(""));
});

test("after the sandbox's end, a running command is lost, and a finished command keeps its outcome", async () => {
  const box = await createSandbox();
  const [done, running] = [await start(box.id, "exit 9"), await start(box.id, "sleep 60")];
  const last = await waitForEnd(box.id, done.id);
  await deleteSandbox(box.id);
  expect(await getSandbox(box.id)).toMatchObject({ status: "terminated" });
  expect(await poll(box.id, done.id)).toEqual(last);
  expect(await poll(box.id, running.id)).toMatchObject({ status: "lost", exit_code: null });
  expectRefusal(await server.api("GET", `${path(box.id, done.id)}/logs`), 409, "sandbox_terminated");
});
