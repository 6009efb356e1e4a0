import { expect, onTestFinished, test, vi } from "vitest";
import { DomainError } from "#lib/errors.ts";
import { testDatabase } from "../../../test/harness.ts";
import { list } from "../commands/commands.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { pauseSandbox } from "../sandboxes/lifecycle/pause.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { attachPty, type Viewer } from "./attach.ts";
import { getPty, killPty, listPtys, startPty } from "./pty.ts";
import { PtyAttach, type PtyMessage, PtyStart } from "./schema.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const { actor } = await personWithTier(db, "enterprise");
const stranger = await personWithTier(db, "enterprise");

const sandbox = async (input: Record<string, unknown> = {}) =>
  (await createSandbox(host.app, actor, createInput(input))).id;
const start = (id: string, command: string, more: object = {}) =>
  startPty(host.app, actor, id, PtyStart.parse({ command, ...more }));
const code = (work: Promise<unknown>) =>
  work.then(
    () => "none",
    (error: unknown) => (error instanceof DomainError ? `${error.status} ${error.code}` : error),
  );

/** A viewer of a terminal that needs no network. */
class TestViewer implements Viewer {
  readonly frames: PtyMessage[] = [];
  text = "";
  closed: number | undefined;
  readonly messages: AsyncIterable<Buffer | string>;
  readonly #gone = new AbortController();
  readonly #typed: (Buffer | string)[] = [];
  #wake = Promise.withResolvers<void>();

  constructor() {
    this.messages = this.#take();
  }

  static async open(id: string, pty: string, query: object = {}): Promise<TestViewer> {
    const viewer = new TestViewer();
    onTestFinished(() => viewer.close());
    void (await attachPty(host.app, actor, id, pty, PtyAttach.parse(query)))(viewer);
    return viewer;
  }

  get signal(): AbortSignal {
    return this.#gone.signal;
  }

  async *#take(): AsyncGenerator<Buffer | string> {
    while (!this.signal.aborted) {
      const message = this.#typed.shift();
      if (message !== undefined) yield message;
      else await this.#wake.promise;
    }
  }

  async send(message: Buffer | PtyMessage): Promise<void> {
    if (Buffer.isBuffer(message)) this.text += message.toString();
    else this.frames.push(message);
  }

  close(status = 1000): void {
    this.closed ??= status;
    this.#gone.abort();
    this.#wake.resolve();
  }

  says(message: Buffer | string): void {
    this.#typed.push(message);
    this.#wake.resolve();
    this.#wake = Promise.withResolvers();
  }

  type(text: string): void {
    this.says(Buffer.from(text));
  }

  async shows(text: string): Promise<void> {
    await vi.waitUntil(() => this.text.includes(text), { timeout: 10_000 });
  }

  async ended(): Promise<number | undefined> {
    await vi.waitUntil(() => this.closed !== undefined, { timeout: 15_000 });
    return this.closed;
  }
}

test("passes keys to the program and its output to the viewer, and reports its end to the viewer and in the record", async () => {
  const id = await sandbox();
  const pty = await start(id, "stty size; echo $TERM $A; read line; stty size; exit 3", {
    cols: 90,
    rows: 20,
    env: { A: "a" },
  });
  expect(pty).toMatchObject({ status: "running", cols: 90, rows: 20, exit_code: null, ended_at: null });
  const viewer = await TestViewer.open(id, pty.id);
  await viewer.shows("20 90\r\nxterm-256color a\r\n");
  viewer.says(JSON.stringify({ kind: "resize", cols: 70, rows: 10 }));
  viewer.type("grüße\n");
  expect(await viewer.ended()).toBe(1000);
  expect(viewer.text).toContain("grüße\r\n10 70\r\n");
  expect(viewer.frames).toEqual([
    { kind: "started", id: pty.id, pid: pty.pid, offset: 0 },
    { kind: "exited", code: 3, signal: null },
  ]);
  expect(await getPty(host.app, actor, id, pty.id)).toMatchObject({
    status: "exited",
    exit_code: 3,
    cols: 70,
  });
});

test("replays all missed output to a viewer that reconnects by offset, and the requested amount by scrollback", async () => {
  const id = await sandbox();
  const { id: pty } = await start(id, "stty -echo; printf 'one two'; read line; printf ' three'; read line");
  const first = await TestViewer.open(id, pty);
  await first.shows("one two");
  first.close();
  const second = await TestViewer.open(id, pty, { offset: 4, cols: 50, rows: 5 });
  await second.shows("two");
  second.type("\n");
  await second.shows(" three");
  expect([second.text, second.frames[0]]).toMatchObject(["two three", { offset: 4 }]);
  const third = await TestViewer.open(id, pty, { scrollback: 5 });
  await third.shows("three");
  expect([third.text, third.frames[0]]).toMatchObject(["three", { offset: 8 }]);
  expect(await getPty(host.app, actor, id, pty)).toMatchObject({ cols: 50, rows: 5 });
});

test("closes the connection, but not the terminal, on an invalid text message", async () => {
  const id = await sandbox();
  const { id: pty } = await start(id, "sleep 60");
  for (const text of ["", "{", '{"kind":"resize"}', '{"kind":"resize","cols":0,"rows":1}', '{"kind":"x"}']) {
    const viewer = await TestViewer.open(id, pty);
    viewer.says(text);
    expect(await viewer.ended()).toBe(4400);
    expect(viewer.frames.at(-1)).toMatchObject({ kind: "error", code: "invalid_message" });
  }
  expect(await getPty(host.app, actor, id, pty)).toMatchObject({ status: "running" });
});

test("hangs up a deleted terminal, and reports its end to its viewers", async () => {
  const id = await sandbox();
  const { id: pty } = await start(id, "exec sleep 60");
  const viewer = await TestViewer.open(id, pty);
  expect(await killPty(host.app, actor, id, pty)).toMatchObject({ status: "killed", exit_code: 129 });
  expect(await viewer.ended()).toBe(1000);
  expect(viewer.frames.at(-1)).toEqual({ kind: "exited", code: null, signal: "SIGHUP" });
  expect(await killPty(host.app, actor, id, pty)).toMatchObject({ status: "killed" });
});

test("reports to viewers that the sandbox was paused or terminated", async () => {
  const id = await sandbox();
  const { id: pty } = await start(id, "exec sleep 60");
  const viewer = await TestViewer.open(id, pty);
  await pauseSandbox(host.app, actor, id);
  expect([await viewer.ended(), viewer.frames.at(-1)]).toMatchObject([4409, { code: "sandbox_paused" }]);
  expect(await code(listPtys(host.app, actor, id))).toBe("409 sandbox_paused");
  await terminateSandbox(host.app, actor, id);
  expect(await code(listPtys(host.app, actor, id))).toBe("409 sandbox_terminated");
});

test("wakes a paused sandbox with auto_resume for a new terminal", async () => {
  const id = await sandbox({ auto_resume: true });
  await pauseSandbox(host.app, actor, id);
  const { id: pty } = await start(id, "echo awake");
  const viewer = await TestViewer.open(id, pty);
  await viewer.shows("awake");
});

test("lists terminals apart from commands, newest first, and limits them to 16", async () => {
  const id = await sandbox();
  const started: string[] = [];
  for (let count = 0; count < 16; count += 1) started.push((await start(id, "exec sleep 60")).id);
  expect((await listPtys(host.app, actor, id)).items.map((pty) => pty.id)).toEqual(started.toReversed());
  expect((await list(host.app, actor, id, { limit: 10 })).items).toEqual([]);
  expect(await code(start(id, "true"))).toBe("409 too_many_processes");
});

test("refuses one of 17 viewers of a terminal, and keeps 16", async () => {
  const id = await sandbox();
  const { id: pty } = await start(id, "exec cat");
  // The server sends a viewer its first message before the guest counts the viewer, so any of the viewers may be
  // refused.
  const viewers = await Promise.all(Array.from({ length: 17 }, () => TestViewer.open(id, pty)));
  const refused = await Promise.any(viewers.map(async (viewer) => (await viewer.ended(), viewer)));
  expect([refused.closed, refused.frames.at(-1)]).toMatchObject([4409, { code: "too_many_viewers" }]);
  const others = viewers.filter((viewer) => viewer !== refused);
  others[0]?.type("seen by all\n");
  for (const viewer of others) await viewer.shows("seen by all");
});

test("hides terminals from other owners, other sandboxes and invented ids", async () => {
  const [id, other] = [await sandbox(), await sandbox()];
  const { id: pty } = await start(id, "exec sleep 60");
  const query = PtyAttach.parse({});
  expect(await code(getPty(host.app, stranger.actor, id, pty))).toBe("404 sandbox_not_found");
  expect(await code(attachPty(host.app, stranger.actor, id, pty, query))).toBe("404 sandbox_not_found");
  for (const [where, which] of [
    [other, pty],
    [id, "pty_none"],
    [id, "cmd_none"],
    [id, ""],
  ] as const) {
    expect(await code(getPty(host.app, actor, where, which))).toBe("404 pty_not_found");
    expect(await code(killPty(host.app, actor, where, which))).toBe("404 pty_not_found");
    expect(await code(attachPty(host.app, actor, where, which, query))).toBe("404 pty_not_found");
  }
});

test("refuses a missing working directory as an invalid request", async () => {
  expect(await code(start(await sandbox(), "true", { cwd: "/no/such" }))).toBe("400 exec_failed");
});
