import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from "vitest";
import type { Reply } from "../support/api.ts";
import { eventually, expectRefusal } from "../support/answers.ts";
import { type Server, startServer } from "../support/server.ts";

/** These tests have their own server, because the interpreter's image is large, and because they cover its pool. */
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

/** Creates a separate sandbox for one test, and returns its id. */
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

/** Runs a cell. The call must succeed; the cell may fail. */
async function run(id: string, code: string, more: Record<string, unknown> = {}) {
  const reply = await tryRun(id, code, more);
  expect(reply.status, JSON.stringify(reply.body)).toBe(200);
  return reply.body;
}

/** Returns the text of a cell's only result. */
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

/** Creates a separate context for one test in the shared sandbox. */
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

/** Waits for a pooled machine with a warm kernel. */
async function waitForPool(): Promise<void> {
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

test("keeps variables between cells, and numbers the cells", async () => {
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

test("separates a cell's output from its error, and keeps variables that the cell set before the error", async () => {
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

test("returns results as text, html, json, pictures and charts", async () => {
  const ctx = await ownContext();
  const first = async (code: string) => (await run(shared, code, { context_id: ctx })).results.at(-1);
  expect(await first("'text'")).toMatchObject({ type: "text", text: "'text'" });
  const frame = await first("import pandas as pd; pd.DataFrame({'a': [1, 2]})");
  expect(frame).toMatchObject({ type: "html", html: expect.stringContaining("<table") });
  expect(await first("{'a': [1, None, 'b']}")).toMatchObject({ type: "json", json: { a: [1, null, "b"] } });
  const picture = await first(
    "import matplotlib.pyplot as plt; _ = plt.imshow([[1, 2], [3, 4]]); plt.title('Heat'); plt.colorbar(); plt.show()",
  );
  expect(picture).toMatchObject({
    type: "image_png",
    chart: { type: "unknown", title: "Heat", x_scale: "linear", series: [] },
  });
  expect(Buffer.from(picture.png, "base64").subarray(1, 4).toString()).toBe("PNG");
});

test("returns every format of a displayed object: jpeg, svg, markdown, latex and pdf, as well as the documented formats", async () => {
  const ctx = await ownContext();
  const ran = await run(
    shared,
    `import io
from IPython.display import Image, Javascript, Latex, Markdown, SVG
from PIL import Image as Picture
def encoded(form):
    file = io.BytesIO()
    Picture.new('RGB', (4, 4)).save(file, form)
    return file.getvalue()
display(Image(encoded('jpeg'), format='jpeg'))
display(Image(encoded('gif'), format='gif'))
display(Picture.new('RGB', (4, 4)))
display(SVG('<svg xmlns="http://www.w3.org/2000/svg"/>'))
display(Markdown('# Title'), Latex('$x^2$'))
display(Javascript('1'))
display({'application/pdf': 'AAAA', 'text/plain': 'a page'}, raw=True)`,
    { context_id: ctx },
  );
  expect(ran.error).toBeNull();
  const [jpeg, gif, both, svg, markdown, latex, script, pdf] = ran.results;
  expect(Buffer.from(jpeg.jpeg, "base64").subarray(0, 2)).toEqual(Buffer.from([0xff, 0xd8]));
  expect(jpeg).toMatchObject({
    type: "html",
    png: null,
    html: `<img src="data:image/jpeg;base64,${jpeg.jpeg}">`,
  });
  expect(gif).toMatchObject({ type: "html", html: expect.stringContaining("data:image/gif;base64,R0lG") });
  expect(both).toMatchObject({ type: "image_png", png: expect.any(String), jpeg: expect.any(String) });
  expect(svg).toMatchObject({ type: "html", svg: expect.stringContaining("<svg"), html: svg.svg });
  expect(markdown).toMatchObject({ type: "text", text: "# Title", markdown: "# Title" });
  expect(latex).toMatchObject({ type: "text", text: "$x^2$", latex: "$x^2$" });
  expect(script).toMatchObject({ type: "text" });
  expect(pdf).toMatchObject({ type: "text", text: "a page", pdf: "AAAA" });
  expect(ran.truncated).toEqual([{ field: "results[6].application/javascript", limit: 0, size: 3 }]);
});

test("returns a DataFrame as data, and reports how many rows and columns are omitted", async () => {
  const ctx = await ownContext();
  const small = await run(
    shared,
    "import pandas as pd\npd.DataFrame({'n': [1, 2**60], 's': ['x', None], 't': pd.to_datetime(['2026-01-01', None])}, index=['r', 's'])",
    { context_id: ctx },
  );
  expect(small.results[0]).toMatchObject({
    type: "html",
    table: {
      columns: [
        { name: "n", type: "int64" },
        { name: "s", type: "object" },
        { name: "t", type: "datetime64[ns]" },
      ],
      index: ["r", "s"],
      rows: [
        [1, "x", "2026-01-01T00:00:00"],
        [String(2n ** 60n), null, null],
      ],
      total_rows: 2,
      total_columns: 3,
    },
  });
  const large = await run(shared, "pd.DataFrame([range(150)] * 5000)", { context_id: ctx });
  const { table } = large.results[0];
  expect([table.rows.length, table.rows[0].length, table.total_rows, table.total_columns]).toEqual([
    1000, 100, 5000, 150,
  ]);
  expect(large.truncated).toEqual([
    { field: "results[0].table.rows", limit: 1000, size: 5000 },
    { field: "results[0].table.columns", limit: 100, size: 150 },
  ]);
  const wide = await run(shared, "pd.DataFrame({'a': ['x' * 600_000] * 3})", { context_id: ctx });
  expect(wide.results[0].table.rows.length).toBe(1);
  const series = await run(shared, "pd.Series([1.5, None], name='v')", { context_id: ctx });
  expect(series.results[0]).toMatchObject({ type: "text", table: { rows: [[1.5], [null]] } });
});

test("returns matplotlib charts as data: lines, bars, dots, pies and boxes", async () => {
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
    x_scale: "linear",
    x_unit: null,
    x_ticks: expect.arrayContaining([1, 2]),
    x_tick_labels: expect.arrayContaining(["1.0", "2.0"]),
    y_label: "y",
    y_scale: "linear",
    y_unit: null,
    y_ticks: expect.arrayContaining([3, 4]),
    y_tick_labels: expect.arrayContaining(["3.0", "4.0"]),
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

test("describes the axes of a chart: scale, unit, ticks, and how many points were drawn", async () => {
  const ctx = await ownContext();
  const runPlot = async (code: string) => {
    const ran = await run(shared, `import matplotlib.pyplot as plt\n${code}\nplt.show()`, {
      context_id: ctx,
    });
    expect(ran.error).toBeNull();
    return ran;
  };
  const chart = async (code: string) => (await runPlot(code)).results[0].chart;
  expect(
    await chart(
      "plt.plot([1, 9], [3, 1000]); plt.yscale('log'); plt.xlabel('Distance (km)'); plt.ylabel('Sales (2024)')",
    ),
  ).toMatchObject({
    x_unit: "km",
    y_unit: null,
    y_scale: "log",
    y_ticks: [10, 100, 1000],
    y_tick_labels: ["10^{1}", "10^{2}", "10^{3}"],
  });
  expect(await chart("plt.bar(['a', 'b'], [3, 4])")).toMatchObject({
    x_scale: "categorical",
    x_ticks: ["a", "b"],
  });
  expect(
    await chart("import datetime as d; plt.plot([d.datetime(2026, 1, 1), d.datetime(2026, 1, 9)], [1, 2])"),
  ).toMatchObject({ x_scale: "datetime", x_tick_labels: expect.arrayContaining(["2026-01-05"]) });
  expect(await chart("plt.pie([1, 3])")).toMatchObject({ x_scale: null, x_ticks: [] });
  expect(await chart("plt.figure().add_subplot(projection='3d').plot([1], [2], [3])")).toMatchObject({
    type: "unknown",
    series: [],
  });
  const many = await runPlot("plt.plot(range(100_000))");
  expect(many.results[0].chart.series[0].points.length).toBe(20_000);
  expect(many.results[0].chart.series[0].total_points).toBe(100_000);
  expect(many.truncated).toEqual([{ field: "results[0].chart.points", limit: 20_000, size: 100_000 }]);
  const asSvg =
    "import matplotlib_inline.backend_inline as inline; inline.set_matplotlib_formats('svg'); plt.plot([1])";
  expect((await runPlot(asSvg)).results).toMatchObject([
    { type: "chart", png: null, svg: expect.stringContaining("<svg") },
  ]);
});

test("keeps a bash context's variables, functions and directory between cells", async () => {
  const bash = (code: string, more: Record<string, unknown> = {}) =>
    run(shared, code, { language: "bash", ...more });
  expect(await bash("x=5; f() { echo f$1; }; cd /tmp; echo out; echo err >&2")).toMatchObject({
    context_id: "default-bash",
    execution_count: 1,
    stdout: "out\n",
    stderr: "err\n",
    results: [],
    error: null,
  });
  expect(await bash("f $x; pwd; false")).toMatchObject({
    stdout: "f5\n/tmp\n",
    error: { name: "ExitStatus", value: "1" },
  });
  const stopped = await bash("g() { sleep 600; echo late; }; g; echo later", { timeout_seconds: 1 });
  expect(stopped).toMatchObject({
    stdout: "",
    interrupted: true,
    restarted: false,
    error: { name: "ExitStatus", value: "130" },
  });
  expect(await bash("while :; do :; done", { timeout_seconds: 1 })).toMatchObject({ restarted: false });
  expect(await bash("if ; then")).toMatchObject({ stderr: expect.stringContaining("syntax error") });
  // A background job neither blocks the cell nor ends with it, and stdin returns an end of file.
  expect(await bash("sleep 600 & read -r line; echo $?")).toMatchObject({ stdout: "1\n", error: null });
  expect(await bash("kill %1 && echo $x")).toMatchObject({ stdout: "5\n" });
  expect(await bash("exit 4")).toMatchObject({
    restarted: true,
    error: { name: "KernelDied", value: expect.stringContaining("exit code 4") },
  });
  expect(await bash("echo [$x]; pwd")).toMatchObject({ stdout: "[]\n/workspace\n", execution_count: 1 });
  const ctx = await ownContext({ language: "bash", cwd: "/usr" });
  expect(await run(shared, "pwd", { context_id: ctx })).toMatchObject({ stdout: "/usr\n" });
  const flood = await bash("head -c 20000000 /dev/zero | tr '\\0' x");
  expect(flood.truncated).toEqual([{ field: "stdout", limit: 8 * 1024 ** 2, size: 20_000_000 }]);
});

test("a cell's env applies to that cell only, in every language", async () => {
  const env = { MODE: "test", TZ: "a 'b'\n$c" };
  for (const [language, code] of [
    ["python", "import os; [os.environ.get('MODE'), os.environ.get('TZ')]"],
    ["javascript", "[process.env.MODE ?? null, process.env.TZ ?? null]"],
  ] as const) {
    const ctx = await ownContext({ language });
    const json = async (more: Record<string, unknown>) =>
      (await run(shared, code, { context_id: ctx, ...more })).results[0].json;
    expect(await json({ env }), language).toEqual([env.MODE, env.TZ]);
    expect(await json({}), language).toEqual([null, null]);
  }
  const shell = await ownContext({ language: "bash" });
  const bash = async (code: string, more: Record<string, unknown> = {}) =>
    (await run(shared, code, { context_id: shell, ...more })).stdout;
  const print = `bash -c 'printf "%s|%s" "$MODE" "$TZ"'`;
  expect(await bash(`${print}; export MODE=other`, { env })).toBe(`${env.MODE}|${env.TZ}`);
  expect(await bash(print)).toBe("|");
  // The environment is restored after an interrupt as well.
  await run(shared, "import time; time.sleep(600)", { env, timeout_seconds: 1 });
  expect(await value(shared, "import os; 'MODE' in os.environ")).toBe("False");
  await bash("sleep 600", { env, timeout_seconds: 1 });
  expect(await bash(print)).toBe("|");
  const refused = await tryRun(shared, "true", { language: "bash", env: { UID: "0" } });
  expectRefusal(refused, 400, "invalid_request");
  expectRefusal(await tryRun(shared, "1", { env: { "A=B": "1" } }), 400, "invalid_request");
});

test("explains why a bash cell whose env sets a read-only variable fails, and keeps the context", async () => {
  const shell = await ownContext({ language: "bash" });
  const bash = (code: string, env = {}) => run(shared, code, { context_id: shell, env });
  await bash("readonly FIXED=1; set -eu; kept=here");
  const refused = await bash("echo ran", { MODE: "test", FIXED: "2" });
  expect(refused).toMatchObject({
    stdout: "",
    execution_count: 2,
    error: { name: "ReadOnlyVariable", value: expect.stringContaining("FIXED") },
  });
  expect(await bash('echo "$FIXED $MODE $kept"', { MODE: "test" })).toMatchObject({
    stdout: "1 test here\n",
    restarted: false,
    error: null,
  });
});

test("omits JSON that is nested too deep, and keeps the cell's other results", async () => {
  const code = `from IPython.display import display, JSON
deep = {}
for _ in range(400):
    deep = {"a": deep}
display(JSON(deep))
{"b": 1}`;
  const ran = await run(shared, code);
  expect(ran.error).toBeNull();
  expect(ran.results.at(-1)).toMatchObject({ json: { b: 1 } });
  expect(ran.results[0]?.json ?? null).toBeNull();
  expect(ran.truncated).toContainEqual({ field: "results[0].json.depth", limit: 256, size: 401 });
});

test("contains the usual data packages", async () => {
  const ctx = await ownContext();
  const code = `import bs4, lxml, openpyxl, PIL, requests, scipy.stats, seaborn, sympy
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
x, y = load_iris(return_X_y=True)
LogisticRegression(max_iter=500).fit(x, y).score(x, y) > 0.9`;
  expect(await value(shared, code, { context_id: ctx })).toBe("True");
});

test("supports await and shell lines, and fails input() at once", async () => {
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

test("interrupts a cell at its timeout, and keeps the context's variables", async () => {
  const ctx = await ownContext();
  const ran = await run(shared, "kept = 1\nimport time\ntime.sleep(100)", {
    context_id: ctx,
    timeout_seconds: 1,
  });
  expect(ran).toMatchObject({ interrupted: true, restarted: false, error: { name: "KeyboardInterrupt" } });
  expect(await value(shared, "kept", { context_id: ctx })).toBe("1");
});

test("replaces a kernel that ignores its interrupt", async () => {
  const ctx = await ownContext();
  const ran = await run(shared, forever, { context_id: ctx, timeout_seconds: 1 });
  expect(ran).toMatchObject({ interrupted: true, restarted: true, error: { name: "KernelKilled" } });
  const next = await run(shared, "'forever' in globals()", { context_id: ctx });
  expect(next).toMatchObject({ execution_count: 1, restarted: false, results: [{ text: "False" }] });
});

test("reports a cell that ends its kernel, and reports once a kernel that ended between cells", async () => {
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

test("cuts output at its limit and reports the cut", { timeout: 180_000 }, async () => {
  const ctx = await ownContext();
  const limit = 8 * 1024 ** 2;
  const ran = await run(shared, `print('x' * ${limit + 10}, end='')`, { context_id: ctx });
  expect(ran.stdout.length).toBe(limit);
  expect(ran.truncated).toEqual([{ field: "stdout", limit, size: limit + 10 }]);
  // A character that JSON escapes as six characters counts as one character.
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

test("a streamed cell sends output while the cell runs, and a summary at its end", async () => {
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

test("interrupts a streamed cell when its reader disconnects, and runs the context's next cell", async () => {
  const ctx = await ownContext();
  const leaving = new AbortController();
  const code = "import time\nprint('began', flush=True)\ntime.sleep(600)";
  const first = stream(shared, { code, context_id: ctx, timeout_seconds: 600 }, leaving.signal);
  expect((await first.next()).value).toMatchObject({ event: "stream" });
  leaving.abort();
  await first.next().catch(() => {});
  expect(await value(shared, "'free'", { context_id: ctx })).toBe("'free'");
});

test("runs cells of one context in sequence, and cells of different contexts in parallel", async () => {
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

test("creates contexts in a directory, restarts them with the same id, and deletes them", async () => {
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

test("runs JavaScript and TypeScript, each in its own default context", { timeout: 180_000 }, async () => {
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
});

test("kernels have the sandbox's environment and name, even from the warm pool, and unique random states", async () => {
  const random = "import random, numpy, uuid; [random.random(), numpy.random.rand(), str(uuid.uuid4())]";
  const seen: unknown[] = [];
  for (const OWN of ["first", "second"]) {
    await waitForPool();
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

test("kernels and their variables survive a pause", { timeout: 120_000 }, async () => {
  const id = await own({ auto_resume: true });
  await run(id, "import pandas as pd; frame = pd.DataFrame({'a': range(1000)})");
  await run(id, "let kept = 7", { language: "javascript" });
  await run(id, "kept=8", { language: "bash" });
  for (let round = 0; round < 2; round += 1) {
    const paused = await post(id, "pause");
    expect(paused.status, JSON.stringify(paused.body)).toBe(200);
    // With auto_resume, the cell resumes the sandbox.
    const ran = await run(id, "int(frame.a.sum())");
    expect(ran).toMatchObject({
      results: [{ text: "499500" }],
      restarted: false,
      execution_count: 2 + round,
    });
  }
  expect(await value(id, "kept", { language: "javascript" })).toBe("7");
  expect((await run(id, "echo $kept", { language: "bash" })).stdout).toBe("8\n");
});

test("kernels and their variables survive kill -9 of the server", async () => {
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

test("restores a killed interpreter together with its contexts", async () => {
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

test("a fake interpreter fails only calls to its own sandbox", async () => {
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

test("a custom template on code-interpreter has the interpreter", { timeout: 300_000 }, async () => {
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

test("refuses code in a template without an interpreter, and returns 404 for another owner's sandbox", async () => {
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
