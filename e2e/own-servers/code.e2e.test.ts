import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from "vitest";
import type { Reply } from "../api.ts";
import { eventually, expectRefusal } from "../answers.ts";
import { type Server, startServer } from "../server.ts";

/** A server of its own: the interpreter's image is large, and the pool of it is part of what is tested. */
let server: Server;
let shared: string;

beforeAll(async () => {
  server = await startServer(
    { KONTOR_POOL_TEMPLATES: "code-interpreter", KONTOR_POOL_SIZE: "1", KONTOR_POOL_MAX: "1" },
    ["debian-12", "code-interpreter"],
  );
  shared = await create();
}, 600_000);
afterAll(() => server?.destroy());
afterEach(() => server.start());

async function create(input: Record<string, unknown> = {}): Promise<string> {
  const body = { template: "code-interpreter", timeout_seconds: 1800, ...input };
  const made = await server.api("POST", "/v1/sandboxes", { body });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  return made.body.id;
}

/** A sandbox of the test's own. */
async function own(input: Record<string, unknown> = {}): Promise<string> {
  const id = await create(input);
  onTestFinished(async () => void (await server.api("DELETE", `/v1/sandboxes/${id}`)));
  return id;
}

const post = (id: string, path: string, body?: unknown) =>
  server.api("POST", `/v1/sandboxes/${id}/${path}`, { body });

function tryRun(id: string, code: string, more: Record<string, unknown> = {}): Promise<Reply> {
  return post(id, "code", { code, ...more });
}

/** The answer of a cell; the call must succeed, the cell need not. */
async function run(id: string, code: string, more: Record<string, unknown> = {}) {
  const reply = await tryRun(id, code, more);
  expect(reply.status, JSON.stringify(reply.body)).toBe(200);
  return reply.body;
}

/** The text of a cell's one result. */
async function value(id: string, code: string, more: Record<string, unknown> = {}): Promise<string> {
  const ran = await run(id, code, more);
  expect(ran.error, JSON.stringify(ran.error)).toBeNull();
  return ran.results[0]?.text;
}

async function context(id: string, input: Record<string, unknown> = {}): Promise<string> {
  const made = await post(id, "code/contexts", input);
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  return made.body.id;
}

/** A context of the test's own in the shared sandbox. */
async function ownContext(input: Record<string, unknown> = {}): Promise<string> {
  const ctx = await context(shared, input);
  onTestFinished(
    async () => void (await server.api("DELETE", `/v1/sandboxes/${shared}/code/contexts/${ctx}`)),
  );
  return ctx;
}

interface Event {
  event: string;
  // oxlint-disable-next-line typescript/no-explicit-any -- the wire, looked at by assertions on purpose
  data: any;
}

async function* stream(
  id: string,
  body: Record<string, unknown>,
  signal?: AbortSignal,
): AsyncGenerator<Event> {
  const response = await fetch(`${server.baseUrl}/v1/sandboxes/${id}/code`, {
    method: "POST",
    headers: { authorization: `Bearer ${server.token}`, "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    ...(signal ? { signal } : {}),
  });
  expect(response.headers.get("content-type")).toContain("text/event-stream");
  let rest = "";
  for await (const bytes of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
    rest += bytes;
    const blocks = rest.split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks.filter((each) => !each.startsWith(":"))) {
      const [, event = "", data = ""] = /^event: (\w+)\ndata: (.*)$/.exec(block) ?? [];
      yield { event, data: JSON.parse(data) };
    }
  }
}

/** A machine waits, its kernel warm. */
async function pooled(): Promise<void> {
  await eventually(
    async () => {
      const headers = { authorization: `Bearer ${server.token}` };
      return (await fetch(`${server.baseUrl}/metrics`, { headers })).text();
    },
    (text) => /^kontor_machines\{owner="pool",state="ready"\} [1-9]/m.test(text),
    60_000,
  );
}

const forever = "while True:\n  try:\n    while True: pass\n  except KeyboardInterrupt: pass";

test("variables stay from cell to cell, and a cell counts as one", async () => {
  const id = await own();
  const first = await run(id, "x = 20");
  expect(first).toEqual({
    results: [],
    stdout: "",
    stderr: "",
    error: null,
    execution_count: 1,
    context_id: "default",
    duration_ms: expect.any(Number),
    interrupted: false,
    restarted: false,
    truncated: [],
  });
  const second = await run(id, "x + 1");
  expect(second).toMatchObject({ execution_count: 2, results: [{ type: "text", text: "21", html: null }] });
});

test("what a cell prints and what went wrong in it are told apart, and it keeps what it did before", async () => {
  const ctx = await ownContext();
  const code = "import sys\nkept = 1\nprint('out')\nprint('err', file=sys.stderr)\n1 / 0";
  const ran = await run(shared, code, { context_id: ctx });
  expect(ran).toMatchObject({
    stdout: "out\n",
    stderr: "err\n",
    error: { name: "ZeroDivisionError", value: "division by zero" },
  });
  expect(ran.error.traceback.join("\n")).toContain("1 / 0");
  expect(ran.error.traceback.join("\n")).not.toContain("\u001B");
  expect(await value(shared, "kept", { context_id: ctx })).toBe("1");
});

test("results are text, html, json, pictures and charts", async () => {
  const ctx = await ownContext();
  const first = async (code: string) => (await run(shared, code, { context_id: ctx })).results.at(-1);
  expect(await first("'text'")).toMatchObject({ type: "text", text: "'text'" });
  const table = await first("import pandas as pd; pd.DataFrame({'a': [1, 2]})");
  expect(table).toMatchObject({ type: "html", html: expect.stringContaining("<table") });
  expect(await first("{'a': [1, None, 'b']}")).toMatchObject({ type: "json", json: { a: [1, null, "b"] } });
  const picture = await first(
    "import matplotlib.pyplot as plt; _ = plt.imshow([[1, 2], [3, 4]]); plt.show()",
  );
  expect(picture).toMatchObject({ type: "image_png", chart: null });
  expect(Buffer.from(picture.png, "base64").subarray(1, 4).toString()).toBe("PNG");
});

test("what matplotlib draws is there as data: lines, bars, dots, pies and boxes", async () => {
  const ctx = await ownContext();
  const chart = async (code: string) => {
    const ran = await run(shared, `import matplotlib.pyplot as plt\n${code}\nplt.show()`, {
      context_id: ctx,
    });
    expect(ran.error).toBeNull();
    expect(ran.results).toMatchObject([{ type: "chart", png: expect.any(String) }]);
    return ran.results[0].chart;
  };
  expect(
    await chart("plt.plot([1, 2], [3, 4.5], label='up'); plt.title('T'); plt.xlabel('x'); plt.ylabel('y')"),
  ).toEqual({
    type: "line",
    title: "T",
    x_label: "x",
    y_label: "y",
    series: [
      {
        label: "up",
        points: [
          [1, 3],
          [2, 4.5],
        ],
      },
    ],
  });
  expect(await chart("plt.bar(['a', 'b'], [3, 4])")).toMatchObject({
    type: "bar",
    title: null,
    series: [
      {
        label: null,
        points: [
          ["a", 3],
          ["b", 4],
        ],
      },
    ],
  });
  expect(await chart("plt.scatter([1, 2], [3, 4], label='dots')")).toMatchObject({
    type: "scatter",
    series: [
      {
        label: "dots",
        points: [
          [1, 3],
          [2, 4],
        ],
      },
    ],
  });
  expect(await chart("plt.pie([1, 3], labels=['one', 'three'])")).toMatchObject({
    type: "pie",
    series: [
      {
        points: [
          ["one", 0.25],
          ["three", 0.75],
        ],
      },
    ],
  });
  expect(await chart("plt.boxplot([[1, 2, 3, 4, 50]], tick_labels=['all'])")).toMatchObject({
    type: "box",
    series: [
      { label: "all", min: 1, first_quartile: 2, median: 3, third_quartile: 4, max: 4, outliers: [50] },
    ],
  });
  expect(await chart("_, (l, r) = plt.subplots(1, 2); l.plot([1], [2]); r.bar(['a'], [1])")).toMatchObject({
    type: "multiple",
    subplots: [{ type: "line" }, { type: "bar" }],
  });
});

test("await works, shell lines work, and asking for input is an error and no wait", async () => {
  const ctx = await ownContext();
  expect(
    await value(shared, "import asyncio\nawait asyncio.sleep(0.01)\n'awaited'", { context_id: ctx }),
  ).toBe("'awaited'");
  expect(await run(shared, "!echo from a shell", { context_id: ctx })).toMatchObject({
    stdout: expect.stringContaining("from a shell"),
  });
  expect(await run(shared, "input('?')", { context_id: ctx })).toMatchObject({
    error: { name: "StdinNotImplementedError" },
  });
});

test("a cell past its timeout is interrupted and keeps its variables", async () => {
  const ctx = await ownContext();
  const ran = await run(shared, "kept = 1\nimport time\ntime.sleep(100)", {
    context_id: ctx,
    timeout_seconds: 1,
  });
  expect(ran).toMatchObject({ interrupted: true, restarted: false, error: { name: "KeyboardInterrupt" } });
  expect(await value(shared, "kept", { context_id: ctx })).toBe("1");
});

test("a kernel that does not heed its interrupt is ended and another takes its place", async () => {
  const ctx = await ownContext();
  const ran = await run(shared, forever, { context_id: ctx, timeout_seconds: 1 });
  expect(ran).toMatchObject({ interrupted: true, restarted: true, error: { name: "KernelKilled" } });
  const next = await run(shared, "'forever' in globals()", { context_id: ctx });
  expect(next).toMatchObject({ execution_count: 1, restarted: false, results: [{ text: "False" }] });
});

test("a cell that takes its kernel with it says so, and one that was lost in between is said once", async () => {
  const ctx = await ownContext();
  expect(await run(shared, "import os; os._exit(3)", { context_id: ctx })).toMatchObject({
    restarted: true,
    error: { name: "KernelDied", value: expect.stringContaining("exit code 3") },
  });
  const later = "import threading, os\nthreading.Timer(0.1, lambda: os._exit(4)).start()";
  expect((await run(shared, later, { context_id: ctx })).restarted).toBe(false);
  await new Promise((resolve) => setTimeout(resolve, 1000));
  expect(await run(shared, "1", { context_id: ctx })).toMatchObject({ restarted: true, error: null });
  expect(await run(shared, "2", { context_id: ctx })).toMatchObject({ restarted: false });
});

test("output without end is cut and said to be", { timeout: 180_000 }, async () => {
  const ctx = await ownContext();
  const limit = 8 * 1024 ** 2;
  const ran = await run(shared, `print('x' * ${limit + 10}, end='')`, { context_id: ctx });
  expect(ran.stdout.length).toBe(limit);
  expect(ran.truncated).toEqual([{ field: "stdout", limit, size: limit + 10 }]);
  // What JSON makes six characters of counts as one.
  const raw = await run(shared, `print('\\x01' * ${limit}, end='')`, { context_id: ctx });
  expect([raw.stdout.length, raw.truncated]).toEqual([limit, []]);
  const large = await run(shared, "from IPython.display import HTML; HTML('x' * 9_000_000)", {
    context_id: ctx,
  });
  expect(large.truncated).toMatchObject([{ field: "results[0].html", limit: 4 * 1024 ** 2 }]);
  expect(large.results).toMatchObject([{ type: "text", html: null }]);
  const many = await run(shared, "for i in range(120): display(i)", { context_id: ctx });
  expect(many.results.length).toBe(100);
  expect(many.truncated).toEqual([{ field: "results", limit: 100, size: 120 }]);
});

test("a streamed cell tells what it does as it does it, and ends with a summary", async () => {
  const ctx = await ownContext();
  const code = "print('a')\ndisplay({'k': 1})\nprint('b')\n1 / 0";
  const events = await Array.fromAsync(stream(shared, { code, context_id: ctx }));
  expect(events.map(({ event }) => event)).toEqual(["stream", "result", "stream", "error", "done"]);
  expect(events[0]?.data).toEqual({ stream: "stdout", text: "a\n" });
  expect(events[1]?.data).toMatchObject({ type: "json", json: { k: 1 } });
  expect(events[3]?.data).toMatchObject({ name: "ZeroDivisionError" });
  expect(events[4]?.data).toMatchObject({
    execution_count: 1,
    context_id: ctx,
    interrupted: false,
    truncated: [],
  });
});

test("a reader who leaves a stream ends the cell, and a place in the queue", async () => {
  const ctx = await ownContext();
  const leaving = new AbortController();
  const code = "import time\nprint('began', flush=True)\ntime.sleep(600)";
  const first = stream(shared, { code, context_id: ctx, timeout_seconds: 600 }, leaving.signal);
  expect((await first.next()).value).toMatchObject({ event: "stream" });
  leaving.abort();
  await first.next().catch(() => {});
  expect(await value(shared, "'free'", { context_id: ctx })).toBe("'free'");
});

test("cells of one context wait for each other, contexts do not", async () => {
  const [one, other] = [await ownContext(), await ownContext()];
  const long = run(shared, "import time\ntime.sleep(3)\norder = ['long']", { context_id: one });
  await eventually(
    () => server.api("GET", `/v1/sandboxes/${shared}/code/contexts`),
    ({ body }) => body.items.find((each: { id: string }) => each.id === one).status === "busy",
  );
  const next = run(shared, "order.append('next'); order", { context_id: one });
  expect(await value(shared, "'order' in globals()", { context_id: other })).toBe("False");
  await long;
  expect((await next).results[0].text).toBe("['long', 'next']");
});

test("contexts are made in a directory, restarted under their id, and deleted", async () => {
  const id = await own();
  await post(id, "exec", { command: "mkdir -p /workspace/there" });
  const ctx = await context(id, { cwd: "/workspace/there" });
  expect(await value(id, "import os; x = 1; os.getcwd()", { context_id: ctx })).toBe("'/workspace/there'");
  const again = await post(id, `code/contexts/${ctx}/restart`);
  expect(again.body).toMatchObject({ id: ctx, cwd: "/workspace/there", execution_count: 0 });
  expect(await run(id, "'x' in globals()", { context_id: ctx })).toMatchObject({
    results: [{ text: "False" }],
    execution_count: 1,
    restarted: false,
  });
  const gone = await server.api("DELETE", `/v1/sandboxes/${id}/code/contexts/${ctx}`);
  expect(gone.body).toMatchObject({ id: ctx });
  expectRefusal(await tryRun(id, "1", { context_id: ctx }), 404, "context_not_found");
  expectRefusal(await post(id, `code/contexts/${ctx}/restart`), 404, "context_not_found");
  expectRefusal(await post(id, "code/contexts", { cwd: "/not/there" }), 400, "invalid_request");
  const busy = run(id, "import time; time.sleep(600)", { timeout_seconds: 600 });
  await eventually(
    () => server.api("GET", `/v1/sandboxes/${id}/code/contexts`),
    ({ body }) => body.items.some((each: { status: string }) => each.status === "busy"),
  );
  await post(id, "code/contexts/default/restart");
  expect(await busy).toMatchObject({ restarted: true, error: { name: "KernelDied" } });
});

test(
  "JavaScript and TypeScript run, each in a default context of its own",
  { timeout: 180_000 },
  async () => {
    const js = { language: "javascript" };
    expect(await run(shared, "const x = 41; console.log('hi'); x + 1", js)).toMatchObject({
      stdout: "hi\n",
      results: [{ type: "text", text: "42" }],
      context_id: "default-javascript",
      execution_count: 1,
    });
    expect((await run(shared, "await Promise.resolve(1); [x, { y: 2 }]", js)).results[0]).toMatchObject({
      type: "json",
      json: [41, { y: 2 }],
    });
    expect(await run(shared, "throw new RangeError('no')", js)).toMatchObject({
      error: { name: "RangeError", value: "no" },
    });
    expect(await run(shared, "while (true);", { ...js, timeout_seconds: 1 })).toMatchObject({
      interrupted: true,
    });
    expect(await value(shared, "x", js)).toBe("41");
    const ts = { language: "typescript" };
    expect(await value(shared, "interface P { a: number }\nconst p: P = { a: 1 };\np.a", ts)).toBe("1");
    expect(await run(shared, "const wrong: number = 'text'", ts)).toMatchObject({
      error: { name: "TypeScriptError", value: expect.stringContaining("not assignable") },
    });
    const mixed = await tryRun(shared, "1", { context_id: "default-typescript", language: "python" });
    expectRefusal(mixed, 400, "invalid_request");
  },
);

test("the sandbox's environment and name are the kernel's, from the pool as well, and no two are random alike", async () => {
  const random = "import random, numpy, uuid; [random.random(), numpy.random.rand(), str(uuid.uuid4())]";
  const seen: unknown[] = [];
  for (const OWN of ["first", "second"]) {
    await pooled();
    const id = await own({ env: { OWN } });
    const name = id.replace("_", "-");
    const seenInside = await value(id, "import os, socket; (os.environ['OWN'], socket.gethostname())");
    expect(seenInside).toBe(`('${OWN}', '${name}')`);
    seen.push(...(await run(id, random)).results[0].json);
    const other = await context(id);
    seen.push(...(await run(id, random, { context_id: other })).results[0].json);
  }
  expect(new Set(seen).size).toBe(seen.length);
});

test("a pause takes the kernels along", { timeout: 120_000 }, async () => {
  const id = await own({ auto_resume: true });
  await run(id, "import pandas as pd; frame = pd.DataFrame({'a': range(1000)})");
  await run(id, "let kept = 7", { language: "javascript" });
  for (let round = 0; round < 2; round += 1) {
    const paused = await post(id, "pause");
    expect(paused.status, JSON.stringify(paused.body)).toBe(200);
    // auto_resume: the cell wakes it.
    const ran = await run(id, "int(frame.a.sum())");
    expect(ran).toMatchObject({
      results: [{ text: "499500" }],
      restarted: false,
      execution_count: 2 + round,
    });
  }
  expect(await value(id, "kept", { language: "javascript" })).toBe("7");
});

test("kernels outlive the server: kill -9, and the variables are there", async () => {
  const id = await own({ env: { OWN: "mine" } });
  await run(id, "import random; random.seed(1); first = random.random(); kept = 1");
  await server.kill9();
  await server.start();
  expect(
    await run(id, "random.seed(1); kept, random.random() == first, __import__('os').environ['OWN']"),
  ).toMatchObject({
    results: [{ text: "(1, True, 'mine')" }],
    restarted: false,
    execution_count: 2,
  });
});

test("an interpreter that something inside ended comes back, with its contexts", async () => {
  const id = await own({ env: { OWN: "mine" } });
  const ctx = await context(id);
  await run(id, "x = 1", { context_id: ctx });
  await post(id, "exec", { command: "pkill -9 python3" });
  expect(
    await run(id, "'x' in globals(), __import__('os').environ['OWN']", { context_id: ctx }),
  ).toMatchObject({
    restarted: true,
    results: [{ text: "(False, 'mine')" }],
  });
  const during = run(id, "open('/workspace/began', 'w')\nimport time\ntime.sleep(600)", {
    timeout_seconds: 600,
  });
  await eventually(
    () => server.api("GET", `/v1/sandboxes/${id}/files/stat?path=/workspace/began`),
    ({ body }) => body.exists,
  );
  await post(id, "exec", { command: "pkill -9 python3" });
  expect(await during).toMatchObject({ restarted: true, error: { name: "InterpreterDied" } });
});

test("a program that poses as the interpreter costs its own sandbox an error and the server nothing", async () => {
  const id = await own();
  await run(id, "1");
  const impostor = `pkill -9 python3; python3 -c "
import socket
s = socket.create_server(('127.0.0.1', 49982))
while True:
    c, _ = s.accept(); c.recv(65536)
    try: c.sendall(b'{' * 20_000_000)
    except OSError: pass
    c.close()" > /dev/null 2>&1 &
    sleep 2`;
  await post(id, "exec", { command: impostor });
  const reply = await tryRun(id, "1");
  expect(reply.status).toBeGreaterThanOrEqual(500);
  expect(await value(shared, "1 + 1", { context_id: await ownContext() })).toBe("2");
});

test("kills the kernel of a cell that uses too much memory, and keeps the sandbox running", async () => {
  const id = await own();
  const ran = await tryRun(id, "x = b'x' * (2 * 1024 ** 3)");
  expect(ran.status, JSON.stringify(ran.body)).toBe(200);
  expect(ran.body.error).toMatchObject({ name: "KernelDied" });
  expect((await server.api("GET", `/v1/sandboxes/${id}`)).body).toMatchObject({ status: "running" });
  expect(await value(id, "1 + 1")).toBe("2");
});

test("a custom template made on it has the interpreter too", { timeout: 300_000 }, async () => {
  const module = "/usr/lib/python3/dist-packages/of_the_template.py";
  const made = await server.api("POST", "/v1/templates", {
    body: {
      name: "with-code",
      base_template: "code-interpreter",
      recipe: [`echo 'ANSWER = 42' > ${module}`],
    },
  });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  const built = await eventually(
    () => server.api("GET", `/v1/templates/${made.body.id}`),
    ({ body }) => body.status !== "building",
    240_000,
  );
  expect(built.body).toMatchObject({ status: "ready" });
  const id = await own({ template: "with-code" });
  expect(await value(id, "import of_the_template; of_the_template.ANSWER")).toBe("42");
});

test("another template has no interpreter, and another's sandbox is not there", async () => {
  const plain = await own({ template: "debian-12" });
  expectRefusal(await tryRun(plain, "1"), 409, "interpreter_unavailable");
  expectRefusal(
    await server.api("GET", `/v1/sandboxes/${plain}/code/contexts`),
    409,
    "interpreter_unavailable",
  );
  expectRefusal(await tryRun("sbx_doesnotexist", "1"), 404, "sandbox_not_found");
  expectRefusal(await tryRun(shared, "1", { context_id: "ctx_none" }), 404, "context_not_found");
});
