import { expect, test } from "vitest";
import { testDatabase } from "../../../test/harness.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { done, type Play, playInterpreter } from "../testing/interpreter.ts";
import { shapeOf } from "../sandboxes/limits/sizes.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { runBuffered, startStreamed, toItem } from "./code.ts";
import { createContext, deleteContext, listContexts, restartContext } from "./contexts.ts";
import { interpreterOf, olderProtocol, protocol } from "./interpreter.ts";
import { Code, CodeContext, CodeItem, CodeResult, CodeSummary, ContextCreate } from "./schema.ts";

const { db } = await testDatabase();
/** Response of the next cell. */
let play: Play;
const interpreter = playInterpreter((request) => play(request));
const host = await testHost(db, { services: { [protocol]: interpreter } });
const { actor } = await personWithTier(db, "enterprise");
const { id, machine_id: machine } = await createSandbox(
  host.app,
  actor,
  createInput({ template: "code-interpreter", env: { OWN: "mine" } }),
);

const run = (input: Record<string, unknown> = {}) =>
  runBuffered(host.app, actor, id, Code.parse({ code: "1", ...input }));

/** Sets the frames of the next cell. */
function says(...frames: (object | string)[]): void {
  play = async function* () {
    yield* frames;
  };
}

const nothing = {
  text: null,
  html: null,
  png: null,
  json: null,
  chart: null,
  jpeg: null,
  svg: null,
  pdf: null,
  markdown: null,
  latex: null,
  table: null,
};
const chart = { type: "line", title: null, x_label: null, y_label: null, series: [] } as const;
const unknown = {
  ...chart,
  type: "unknown",
  x_scale: "log",
  y_scale: "linear",
  x_unit: "km",
  y_unit: null,
  x_ticks: [1, 10],
  y_ticks: [],
  x_tick_labels: ["1", "10"],
  y_tick_labels: [],
} as const;
const table = {
  columns: [{ name: "a", type: "int64" }],
  index: [0],
  rows: [[1]],
  total_rows: 9,
  total_columns: 1,
};

test("collects the output of a cell into one response in the wire's schema", async () => {
  says(
    { type: "stream", stream: "stdout", text: "a" },
    { type: "result", text: "2" },
    { type: "stream", stream: "stderr", text: "e" },
    { type: "stream", stream: "stdout", text: "b" },
    { type: "error", name: "ValueError", value: "v", traceback: ["t"] },
    { ...done, truncated: [{ field: "stdout", limit: 1, size: 2 }] },
  );
  const ran = await run();
  expect(CodeResult.safeParse(ran).error).toBeUndefined();
  expect(ran).toEqual({
    results: [{ type: "text", ...nothing, text: "2" }],
    stdout: "ab",
    stderr: "e",
    error: { name: "ValueError", value: "v", traceback: ["t"] },
    execution_count: 1,
    context_id: "default",
    duration_ms: 2,
    interrupted: false,
    restarted: false,
    truncated: [{ field: "stdout", limit: 1, size: 2 }],
  });
});

test.for([
  [{ text: "t" }, "text"],
  [{ text: "t", json: [1] }, "json"],
  [{ text: "t", json: [1], html: "<p>" }, "html"],
  [{ text: "t", html: "<p>", png: "AA==" }, "image_png"],
  [{ text: "t", png: "AA==", chart }, "chart"],
  [{ text: "t", png: "AA==", chart: unknown }, "image_png"],
  [{ text: "t", html: "<svg/>", svg: "<svg/>", jpeg: "AA==", pdf: "AA==" }, "html"],
  [{ text: "# t", markdown: "# t", latex: "$t$" }, "text"],
  [{ text: "t", html: "<table>", table }, "html"],
  [{ json: 0 }, "json"],
] as const)("selects from %j the richest form: %s", ([data, type]) => {
  const item = toItem({ type: "result", ...data } as never);
  expect(item).toEqual({ type, ...nothing, ...data });
  expect(CodeItem.safeParse(item).error).toBeUndefined();
});

test.for([
  [{}, "default", null],
  [{ context_id: null, language: "python" }, "default", "python"],
  [{ language: "javascript" }, "default-javascript", "javascript"],
  [{ context_id: "default", language: "typescript" }, "default-typescript", "typescript"],
  [{ language: "bash" }, "default-bash", "bash"],
  [{ context_id: "ctx_a" }, "ctx_a", null],
] as const)("runs the cell %j in the context %s", async ([input, context, language]) => {
  says(done);
  expect((await run({ ...input, timeout_seconds: 7 })).context_id).toBe(context);
  expect(interpreter.requests.at(-1)).toEqual({
    op: "run",
    id: context,
    code: "1",
    language,
    env: {},
    timeout_seconds: 7,
    watched: false,
  });
});

test("sends the environment of a cell to its kernel", async () => {
  says(done);
  await run({ env: { MODE: "test" } });
  expect(interpreter.requests.at(-1)).toMatchObject({ op: "run", env: { MODE: "test" } });
});

test.for([
  [{ "": "x" }],
  [{ "A=B": "x" }],
  [{ A: "\0" }],
  [{ A: "x".repeat(70_000) }],
  [Object.fromEntries(Array.from({ length: 65 }, (_, at) => [`A${at}`, "x"]))],
] as const)("refuses a cell's environment that no process can have or that is too large", ([env]) => {
  expect(Code.safeParse({ code: "1", env }).success).toBe(false);
});

test("refuses bash and the environment of a cell on an image with an older interpreter", () => {
  const older = { speaks: olderProtocol, argv: ["none"], port: 1 };
  const outdated = expect.objectContaining({ code: "interpreter_outdated", status: 409 });
  expect(interpreterOf(older, { language: "python", env: {} })).toBe(older);
  expect(interpreterOf(older)).toBe(older);
  expect(() => interpreterOf(older, { language: "bash" })).toThrow(outdated);
  expect(() => interpreterOf(older, { env: { A: "1" } })).toThrow(outdated);
  const newer = { ...older, speaks: protocol };
  expect(interpreterOf(newer, { language: "bash", env: { A: "1" } })).toBe(newer);
});

test("sends an event for each output of a streamed cell, and a summary at its end", async () => {
  says({ type: "stream", stream: "stderr", text: "e" }, { type: "result", text: "2" }, done);
  const { events } = await startStreamed(host.app, actor, id, Code.parse({ code: "1", stream: true }));
  const all = await Array.fromAsync(events);
  expect(all.map(({ event }) => event)).toEqual(["stream", "result", "done"]);
  expect(all[0]?.data).toEqual({ stream: "stderr", text: "e" });
  expect(CodeSummary.safeParse(all[2]?.data).error).toBeUndefined();
  expect(interpreter.requests.at(-1)).toMatchObject({ watched: true });
});

test.for([
  ["no JSON", ["{nonsense\n"], "guest_protocol"],
  ["deep JSON", [`{"type":"result","json":${"[".repeat(600)}${"]".repeat(600)}}\n`], "guest_protocol"],
  ["a line without end", [`"${"x".repeat(25 * 1024 ** 2)}`], "guest_protocol"],
  [
    "more output than a cell may have",
    Array.from({ length: 9 }, () => ({ type: "stream", stream: "stdout", text: "x".repeat(1024 ** 2) })),
    "interpreter_failed",
  ],
  [
    "more results than a cell may have",
    Array.from({ length: 101 }, () => ({ type: "result", text: "1" })),
    "interpreter_failed",
  ],
  ["a frame of no kind", [{ type: "surprise" }], "interpreter_failed"],
  ["a field of another type", [{ type: "stream", stream: "stdout", text: 1 }], "interpreter_failed"],
  ["a picture that is no base64", [{ type: "result", png: "<svg>" }], "interpreter_failed"],
  ["a JPEG that is no base64", [{ type: "result", jpeg: '"><script>' }], "interpreter_failed"],
  ["a table of no shape", [{ type: "result", table: { rows: 1 } }], "interpreter_failed"],
  ["a chart of no shape", [{ type: "result", chart: { type: "virus" } }], "interpreter_failed"],
  ["a second start", [{ type: "started" }], "interpreter_failed"],
] as const)("fails only the call to which the machine responds with %s", async ([, frames, code]) => {
  says(...frames, done);
  const failure = await run().catch((error: unknown) => error);
  expect(failure).toMatchObject(
    code === "guest_protocol" ? { code: "machine_failed", cause: { kind: code } } : { code, status: 503 },
  );
  says(done);
  expect((await run()).execution_count).toBe(1);
});

test.for([
  ["context_not_found", 404, "context_not_found"],
  ["context_busy", 409, "context_busy"],
  ["context_limit_reached", 409, "context_limit_reached"],
  ["invalid_cwd", 400, "invalid_request"],
  ["wrong_language", 400, "invalid_request"],
  ["invalid_env", 400, "invalid_request"],
  ["failed", 503, "interpreter_failed"],
  ["made_up", 503, "interpreter_failed"],
] as const)("maps the refusal %s to %i %s, with the server's own message", async ([said, status, code]) => {
  says({ type: "refused", code: said, message: "<their words>" });
  const failure = await run().catch((error: unknown) => error);
  expect(failure).toMatchObject({ status, code });
  expect((failure as Error).message).not.toContain("their words");
});

test("fails a cell whose interpreter disconnects, and reports that its variables are lost", async () => {
  says({ type: "stream", stream: "stdout", text: "so far" });
  expect(await run()).toMatchObject({
    stdout: "so far",
    error: { name: "InterpreterDied" },
    restarted: true,
    execution_count: null,
  });
});

test("passes on results of an older interpreter, whose charts lack scales and ticks", async () => {
  says({ type: "result", text: "f", png: "AA==", chart }, done);
  const ran = await run();
  expect(CodeResult.safeParse(ran).error).toBeUndefined();
  expect(ran.results).toEqual([{ type: "chart", ...nothing, text: "f", png: "AA==", chart }]);
});

test("lists the machine's contexts under ids of the API", async () => {
  const made = await createContext(host.app, actor, id, ContextCreate.parse({ language: "javascript" }));
  expect(CodeContext.safeParse(made).error).toBeUndefined();
  expect(made).toMatchObject({
    id: expect.stringMatching(/^ctx_/),
    language: "javascript",
    cwd: "/workspace",
  });
  expect(await listContexts(host.app, actor, id)).toEqual({ items: [made] });
  expect(await deleteContext(host.app, actor, id, made.id)).toEqual(made);
  await expect(deleteContext(host.app, actor, id, made.id)).rejects.toMatchObject({
    code: "context_not_found",
  });
  await expect(deleteContext(host.app, actor, id, "../x")).rejects.toMatchObject({
    code: "context_not_found",
  });
});

test("returns different errors for a template without an interpreter and for another owner's sandbox", async () => {
  const plain = await createSandbox(host.app, actor, createInput());
  const code = Code.parse({ code: "1" });
  await expect(runBuffered(host.app, actor, plain.id, code)).rejects.toMatchObject({
    code: "interpreter_unavailable",
    status: 409,
  });
  const { actor: stranger } = await personWithTier(db, "enterprise");
  await expect(runBuffered(host.app, stranger, id, code)).rejects.toMatchObject({
    code: "sandbox_not_found",
  });
  const bash = Code.parse({ code: "id", language: "bash", env: { A: "1" }, stream: true });
  await expect(startStreamed(host.app, stranger, id, bash)).rejects.toMatchObject({
    code: "sandbox_not_found",
  });
  const bashContext = ContextCreate.parse({ language: "bash" });
  for (const call of [
    () => createContext(host.app, stranger, id, bashContext),
    () => listContexts(host.app, stranger, id),
    () => restartContext(host.app, stranger, id, "default-bash"),
    () => deleteContext(host.app, stranger, id, "default-bash"),
  ])
    await expect(call()).rejects.toMatchObject({ code: "sandbox_not_found" });
});

test("reports why the sandbox ended when its machine ends during a cell, buffered and streamed", async () => {
  play = async function* () {
    yield { type: "stream", stream: "stdout", text: "a" };
    await new Promise(() => {});
  };
  const buffered = run();
  const { events } = await startStreamed(host.app, actor, id, Code.parse({ code: "1", stream: true }));
  const all = Array.fromAsync(events);
  host.driver.end(machine ?? "", "out_of_memory");
  interpreter.hangUp();
  await expect(buffered).rejects.toMatchObject({
    code: "sandbox_terminated",
    meta: { termination_reason: "out_of_memory" },
  });
  expect((await all).map(({ event }) => event)).toEqual(["stream", "error", "done"]);
  expect((await all)[1]?.data).toMatchObject({ name: "sandbox_terminated" });
});

// Starts a server of its own, which takes over the host, so this test must be the last.
test("passes the owner's environment to a pooled machine's warm interpreter before the create returns", async () => {
  const pooled = playInterpreter();
  const other = await testHost(db, { services: { [protocol]: pooled }, poolCeiling: 1 });
  other.app.machines.pool.keep(shapeOf("code-interpreter", "small", 1), 1);
  await other.app.machines.pool.waitUntilFull();
  expect(pooled.requests).toEqual([{ op: "ready" }]);
  const env = { OWN: "mine" };
  await createSandbox(other.app, actor, createInput({ template: "code-interpreter", env }));
  expect(pooled.requests[1]).toEqual({ op: "claim", env: expect.objectContaining(env) });
});
