import { sql } from "kysely";
import { afterEach, describe, expect, test, vi } from "vitest";
import { testDatabase } from "../../../test/harness.ts";
import { HandlerFailed } from "./errors.ts";
import { minutesOf } from "./minutes.ts";
import {
  deployHandler,
  goLive,
  instancesHost,
  type TestFunction,
  makeFunction,
  makeVersion,
} from "./testing/instances-host.ts";
import { sealVariables } from "../environments/variables.ts";

const { db } = await testDatabase();
const host = await instancesHost(db);
const { signal } = new AbortController();

afterEach(async () => {
  for (const { id } of await db.selectFrom("functions").select("id").execute()) await host.instances.stop(id);
});

const counting = `let n = 0; export default () => { n += 1; return String(n); };`;
const held = `
  const waiting = [];
  export default async (request) => {
    if (request.url.endsWith("/free")) { for (const free of waiting.splice(0)) free(); return "freed"; }
    await new Promise((resolve) => waiting.push(resolve));
    return String(process.pid);
  };`;

async function ask({ id }: TestFunction, path = "/", options: { method?: string; body?: string } = {}) {
  const { method = "GET", body = "" } = options;
  const answered = await host.instances.invoke(
    id,
    { method, path, headers: {}, body: Buffer.from(body) },
    signal,
  );
  return { ...answered, text: answered.body.toString() };
}

function states({ id }: TestFunction) {
  return db
    .selectFrom("function_instances")
    .select(["state", "version_id"])
    .where("function_id", "=", id)
    .execute();
}

async function idle(made: TestFunction, seconds: number): Promise<void> {
  await db
    .updateTable("functions")
    .set({ idle_timeout_seconds: seconds })
    .where("id", "=", made.id)
    .execute();
  await host.instances.changed(made.id);
}

describe("functions", () => {
  test("serves the first request with the instance that proved the version", async () => {
    const made = await makeFunction(db);
    await deployHandler(db, host, made, counting);
    const first = await ask(made);
    expect(first).toMatchObject({ status: 200, text: "1", coldStart: false, wakeMs: null });
    expect(await ask(made)).toMatchObject({ text: "2" });
    expect(await states(made)).toMatchObject([{ state: "running" }]);
    expect(host.instances.isIdle(made.id)).toBe(false);
  });

  test("refuses a request to a function without a live version", async () => {
    const made = await makeFunction(db);
    await host.instances.changed(made.id);
    await expect(ask(made)).rejects.toMatchObject({ code: "function_not_deployed", status: 409 });
  });

  test("fails the proof of a handler that does not load, with the reason in the error", async () => {
    const made = await makeFunction(db);
    const version = await makeVersion(db, host, made, 1, `export default canary4711();`);
    const failure = await host.instances.prove(version, signal).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(HandlerFailed);
    expect((failure as Error).message).toContain("canary4711 is not defined");
    expect(await states(made)).toEqual([]);
    expect(await db.selectFrom("machines").selectAll().where("desired", "<>", "removed").execute()).toEqual(
      [],
    );
  });

  test("freezes an idle function with its memory, and wakes it once for many requests", async () => {
    const made = await makeFunction(db);
    await deployHandler(db, host, made, counting);
    await ask(made);
    await idle(made, 0);
    await vi.waitFor(async () => expect(await states(made)).toMatchObject([{ state: "frozen" }]), 10_000);
    expect(host.instances.isIdle(made.id)).toBe(true);
    await idle(made, 300);
    const answers = await Promise.all(Array.from({ length: 30 }, () => ask(made)));
    expect(answers.map(({ text }) => Number(text)).toSorted((a, b) => a - b)).toEqual(
      Array.from({ length: 30 }, (_, at) => at + 2),
    );
    expect(answers.every(({ coldStart, wakeMs }) => !coldStart && wakeMs !== null)).toBe(true);
    expect(await states(made)).toMatchObject([{ state: "running" }]);
  });

  test("completes requests in flight after a switch, and serves new ones with the new version", async () => {
    const made = await makeFunction(db);
    const one = await deployHandler(db, host, made, held);
    const begun = ask(made);
    await vi.waitFor(() => expect(host.instances.isIdle(made.id)).toBe(false));
    const two = await deployHandler(db, host, made, `export default () => "two";`, { number: 2 });
    expect(await ask(made)).toMatchObject({ text: "two" });
    const both = await states(made);
    expect(both.map(({ version_id }) => version_id).toSorted()).toEqual([one.id, two.id].toSorted());
    void begun.catch(() => {});
  });

  test("starts more instances while all slots are in use, up to the plan's limit", async () => {
    const made = await makeFunction(db, { plan: "pro" });
    await deployHandler(db, host, made, held);
    const asked = Array.from({ length: 170 }, () => ask(made));
    await vi.waitFor(async () => expect(await states(made)).toHaveLength(3), 15_000);
    await vi.waitFor(async () => {
      for (const { state } of await states(made)) expect(state).toBe("running");
    }, 15_000);
    for (const answer of asked) answer.catch(() => {});
    await host.instances.stop(made.id);
    await Promise.allSettled(asked);
    expect(await states(made)).toEqual([]);
  }, 60_000);

  test("restarts a function after its process ended, and fails the requests in flight with the reason", async () => {
    const made = await makeFunction(db);
    await deployHandler(
      db,
      host,
      made,
      `export default (request) => { if (request.url.endsWith("/exit")) process.exit(3); return String(process.pid); };`,
    );
    const before = await ask(made);
    await expect(ask(made, "/exit")).rejects.toMatchObject({ code: "function_crashed" });
    const after = await ask(made);
    expect(after).toMatchObject({ status: 200, coldStart: true });
    expect(after.text).not.toBe(before.text);
    await vi.waitFor(async () => {
      const { lines } = await host.instances.ring(made.id).tail(10);
      expect(lines.map(({ text }) => text)).toContain("The function's process ended with exit code 3.");
    });
  });

  test("restarts a function after its machine was lost", async () => {
    const made = await makeFunction(db);
    await deployHandler(db, host, made, counting);
    await ask(made);
    const [machine] = await db
      .selectFrom("machines")
      .select("id")
      .where("owner_kind", "=", "function")
      .where("desired", "=", "running")
      .execute();
    host.driver.end(machine!.id, "out_of_memory");
    await vi.waitFor(async () => expect(await states(made)).toEqual([]));
    expect(await ask(made)).toMatchObject({ text: "1", coldStart: true });
    const { lines } = await host.instances.ring(made.id).tail(10);
    expect(lines.map(({ text }) => text).join()).toContain("ran out of memory");
    const news = () =>
      db
        .selectFrom("notifications")
        .select("kind")
        .where(sql<string>`target ->> 'id'`, "=", made.id)
        .execute();
    await vi.waitFor(async () => expect(await news()).toEqual([{ kind: "out_of_memory" }]));
  });

  test("restarts a function whose machine cannot be thawed", async () => {
    const made = await makeFunction(db);
    await deployHandler(db, host, made, counting);
    await ask(made);
    await idle(made, 0);
    await vi.waitFor(async () => expect(await states(made)).toMatchObject([{ state: "frozen" }]), 10_000);
    await idle(made, 300);
    host.driver.fail("thaw", new Error("no"));
    expect(await ask(made)).toMatchObject({ text: "1", coldStart: true });
    expect(await states(made)).toMatchObject([{ state: "running" }]);
  });

  test("ends an instance whose handler exceeds its timeout in an endless loop", async () => {
    const made = await makeFunction(db, { timeout_seconds: 1 });
    await deployHandler(
      db,
      host,
      made,
      `export default (request) => { if (request.url.endsWith("/loop")) for (;;); return "fine"; };`,
    );
    await expect(ask(made, "/loop")).rejects.toMatchObject({ code: "function_timeout", status: 504 });
    expect(await ask(made)).toMatchObject({ text: "fine", coldStart: true });
  }, 20_000);

  test("gives changed variables to a function once its instance is idle", async () => {
    const made = await makeFunction(db);
    await deployHandler(db, host, made, `export default () => String(process.env.OWN);`);
    expect(await ask(made)).toMatchObject({ text: "undefined" });
    const sealed = sealVariables(host.app, "functions", made.id, { OWN: "yes" });
    await db.updateTable("functions").set({ env_sealed: sealed }).where("id", "=", made.id).execute();
    await host.instances.changed(made.id);
    expect(await ask(made)).toMatchObject({ text: "yes", coldStart: true });
  });

  test("gives changed variables to a busy function in an additional instance", async () => {
    const made = await makeFunction(db);
    await deployHandler(
      db,
      host,
      made,
      `let go; export default async (request) => {
        if (request.url.endsWith("/free")) go();
        if (request.url.endsWith("/wait")) await new Promise((resolve) => (go = resolve));
        return String(process.env.OWN);
      };`,
    );
    const first = ask(made, "/wait");
    await vi.waitFor(() => expect(host.instances.isIdle(made.id)).toBe(false));
    const early = await host.instances.acquire(made.id, signal);
    const sealed = sealVariables(host.app, "functions", made.id, { OWN: "yes" });
    await db
      .updateTable("functions")
      .set({ env_sealed: sealed, timeout_seconds: 7 })
      .where("id", "=", made.id)
      .execute();
    await host.instances.changed(made.id);
    // The earlier instance serves until then, with its own timeout.
    const late = await host.instances.acquire(made.id, signal);
    expect(late).toMatchObject({ machine: early.machine, timeoutMs: early.timeoutMs });
    late.release();
    await vi.waitFor(async () => expect(await ask(made)).toMatchObject({ text: "yes" }), 10_000);
    const next = await host.instances.acquire(made.id, signal);
    expect(early.timeoutMs - next.timeoutMs).toBe(23_000);
    next.release();
    const { port } = early;
    await fetch(`http://127.0.0.1:${port}/free`);
    expect(await first).toMatchObject({ text: "undefined" });
    early.release();
    await vi.waitFor(async () => expect(await states(made)).toMatchObject([{ state: "running" }]), 10_000);
  }, 30_000);

  test("applies a committed change whose first read fails", async () => {
    const made = await makeFunction(db);
    await host.instances.changed(made.id);
    const keyHash = Buffer.alloc(32, 1);
    await db
      .updateTable("functions")
      .set({ auth_mode: "api_key", api_key_hash: keyHash, api_key_hint: "hint" })
      .where("id", "=", made.id)
      .execute();
    await sql`alter table functions rename to functions_away`.execute(db);
    try {
      await expect(host.instances.changed(made.id)).rejects.toThrow("does not exist");
    } finally {
      await sql`alter table functions_away rename to functions`.execute(db);
    }
    expect(host.instances.find(made.name)?.keyHash).toBeNull();
    await vi.waitFor(() => expect(host.instances.find(made.name)?.keyHash).toEqual(keyHash), 10_000);
  });

  test("finds a function by the name of a deleted one, even after that one is stopped", async () => {
    const earlier = await makeFunction(db);
    await host.instances.changed(earlier.id);
    const gone = { deleted_at: new Date(), name: `~${earlier.id}` };
    await db.updateTable("functions").set(gone).where("id", "=", earlier.id).execute();
    const later = await makeFunction(db);
    await db.updateTable("functions").set({ name: earlier.name }).where("id", "=", later.id).execute();
    await host.instances.changed(later.id);
    await host.instances.stop(earlier.id);
    expect(host.instances.find(earlier.name)).toMatchObject({ functionId: later.id });
    await host.instances.stop(later.id);
    expect(host.instances.find(earlier.name)).toBeUndefined();
  });

  test("logs a record with level and request, and other output unchanged", async () => {
    const made = await makeFunction(db);
    await deployHandler(
      db,
      host,
      made,
      `export default (request, { requestId }) => {
        console.warn("careful"); process.stdout.write("plain\\n"); return requestId;
      };`,
    );
    const { text } = await ask(made);
    await vi.waitFor(async () => {
      const { lines } = await host.instances.ring(made.id).tail(10);
      expect(lines).toMatchObject([
        { text: "careful", level: "warn", stream: "stderr", request_id: text },
        { text: "plain", stream: "stdout" },
      ]);
    });
  });

  test("counts responses, cold starts and wakes", async () => {
    const made = await makeFunction(db);
    const version = await makeVersion(db, host, made, 1, counting);
    await goLive(db, version);
    await host.instances.switched(made.id);
    expect(await ask(made)).toMatchObject({ text: "1", coldStart: true });
    await vi.waitFor(async () => {
      const [minute] = await minutesOf(db, made.id, new Date(0));
      expect(minute).toMatchObject({ requests: 1, errors: 0, cold_starts: 1 });
      expect(minute!.wakes.length).toBeGreaterThan(0);
    });
  });

  test("serves ten concurrent requests with one Python instance", async () => {
    const made = await makeFunction(db);
    await deployHandler(
      db,
      host,
      made,
      `import threading\nall_here = threading.Barrier(10)\ndef handler(request):\n    all_here.wait()\n    return request.method\n`,
      { runtime: "python" },
    );
    const answers = await Promise.all(Array.from({ length: 10 }, () => ask(made, "/", { method: "POST" })));
    expect(answers.map(({ text }) => text)).toEqual(Array.from({ length: 10 }, () => "POST"));
    expect(await states(made)).toHaveLength(1);
  });

  test("removes a stopped function's instances, and refuses its requests", async () => {
    const made = await makeFunction(db);
    await deployHandler(db, host, made, counting);
    await db.updateTable("functions").set({ deleted_at: new Date() }).where("id", "=", made.id).execute();
    await host.instances.stop(made.id);
    await expect(ask(made)).rejects.toMatchObject({ code: "function_not_deployed" });
    expect(await states(made)).toEqual([]);
    expect(host.instances.find(made.name)).toBeUndefined();
    await host.instances.stop(made.id);
  });
});
