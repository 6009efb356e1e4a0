/**
 * Python functions on real machines: plain, async and streaming handlers, their errors and timeouts, and locked
 * dependencies from the indexes in the host's pip configuration.
 */
import http, { type IncomingMessage } from "node:http";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { eventually } from "../support/answers.ts";
import { type Server, startServer } from "../support/server.ts";
import { type PythonIndexes, startIndexes } from "./python-indexes.ts";

let indexes: PythonIndexes;
let server: Server;
let made = 0;

beforeAll(async () => {
  indexes = await startIndexes();
  const env = {
    KONTOR_POOL_SIZE: "0",
    KONTOR_RATE_LIMITS: "off",
    KONTOR_UPLINK: indexes.uplink,
    KONTOR_DNS_SERVERS: indexes.resolver,
    PIP_CONFIG_FILE: indexes.config,
  };
  server = await startServer(env, ["python-3.13"]);
});
afterAll(async () => {
  await server?.destroy();
  await indexes?.close();
});

interface Function {
  id: string;
  slug: string;
  error: string | null;
  pending_deploy: boolean;
}

async function call(method: string, { id }: Pick<Function, "id">, path = "", body?: object) {
  return (await server.api(method, `/api/v1/functions/${id}${path}`, body ? { body } : {})).body;
}

async function deployFunction(handler_code: string, more: object = {}): Promise<Function> {
  const name = `python-${(made += 1)}-${process.pid}`;
  const body = { name, runtime: "python", handler_code, ...more };
  const reply = await server.api("POST", "/api/v1/functions", { body });
  expect(reply.status, JSON.stringify(reply.body)).toBe(201);
  onTestFinished(() => call("DELETE", reply.body));
  return deploy(reply.body);
}

async function deploy(one: Function): Promise<Function> {
  const live = (await call("POST", one, "/deploy")) as Function;
  expect(live).toMatchObject({ error: null, pending_deploy: false });
  return live;
}

/** Requests a function at its address, on a new connection. */
function open({ slug }: Function, path: string): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const { port } = server.description;
    const headers = { host: `${slug}.fn.apps.localhost` };
    const request = http.get({ host: "127.0.0.1", port, path, headers, agent: false, timeout: 60_000 });
    request.once("response", resolve);
    request.once("timeout", () => request.destroy(new Error("no answer")));
    request.once("error", reject);
  });
}

async function ask(one: Function, path: string): Promise<{ status: number; text: string }> {
  const response = await open(one, path);
  let text = "";
  for await (const piece of response.setEncoding("utf8")) text += String(piece);
  return { status: response.statusCode ?? 0, text };
}

async function saying(one: Function, words: string): Promise<{ level: string; request_id: string | null }> {
  interface Line {
    text: string;
    level: string;
    request_id: string | null;
  }
  const find = async () =>
    ((await call("GET", one, "/logs?lines=1000")).lines as Line[]).find(({ text }) => text.includes(words));
  return (await eventually(find, (line) => line !== undefined))!;
}

const handlers = `import asyncio, time
asked = 0

async def pieces():
    for n in range(3):
        yield f"{n}\\n"
        await asyncio.sleep(0.2)

async def slowly():
    await asyncio.sleep(0.01)
    return {"awaited": True}

def handler(request):
    global asked
    asked += 1
    if request.path == "/async": return slowly()
    if request.path == "/stream": return pieces(), 200, {"content-type": "text/event-stream"}
    if request.path == "/fail": raise ValueError("canary-4711")
    while request.path == "/slow": time.sleep(0.01)
    print("asked", request.path)
    return {"asked": asked, "query": request.query}
`;

test("calls plain, async and streaming handlers, and keeps their state", { timeout: 600_000 }, async () => {
  const one = await deployFunction(handlers);
  expect(JSON.parse((await ask(one, "/?a=%C3%BC")).text)).toEqual({ asked: 1, query: { a: "ü" } });
  expect(JSON.parse((await ask(one, "/async")).text)).toEqual({ awaited: true });
  const response = await open(one, "/stream");
  expect(response.headers["content-type"]).toBe("text/event-stream");
  const pieces: string[] = [];
  for await (const piece of response.setEncoding("utf8")) pieces.push(String(piece));
  expect(pieces.join("")).toBe("0\n1\n2\n");
  // The pieces arrive as they are sent, and not all at the end.
  expect(pieces.length).toBeGreaterThan(1);
  expect(JSON.parse((await ask(one, "/")).text)).toMatchObject({ asked: 4 });
  expect(await saying(one, "asked /")).toMatchObject({ level: "info" });
});

test(
  "an exception returns 500 with its traceback only in the logs, and a timeout returns 504",
  { timeout: 600_000 },
  async () => {
    const one = await deployFunction(handlers, { timeout_seconds: 1 });
    const failed = await ask(one, "/fail");
    expect([failed.status, JSON.parse(failed.text).error]).toEqual([
      500,
      { code: "function_error", message: expect.any(String), request_id: expect.any(String) },
    ]);
    expect(failed.text).not.toContain("canary");
    const { request_id } = JSON.parse(failed.text).error as { request_id: string };
    expect(await saying(one, "ValueError: canary-4711")).toMatchObject({ level: "error", request_id });
    expect(await saying(one, "Traceback (most recent call last)")).toMatchObject({ request_id });
    expect(await saying(one, "handler.py")).toMatchObject({ request_id });

    const late = await ask(one, "/slow");
    expect([late.status, JSON.parse(late.text).error.code]).toEqual([504, "function_timeout"]);
    expect(await saying(one, "Timed out")).toMatchObject({ level: "error" });
    // The counter shows that the process is the same.
    expect(JSON.parse((await ask(one, "/")).text)).toMatchObject({ asked: 3 });
  },
);

test("reinstalls locked dependencies, and refuses a replaced wheel", { timeout: 600_000 }, async () => {
  // A retry uses new names, because the first attempt left its wheels.
  const [closed, open] = [`closedly${made}`, `openly${made}`];
  const hashes = {
    open: await indexes.put("open", open, "1.0", "open 1.0"),
    closed: await indexes.put("closed", closed, "1.0", "closed 1.0"),
  };
  const handler = (word: string) => `import ${open} as open, ${closed} as closed
def handler(request):
    return {"word": "${word}", "says": [open.says, closed.says]}
`;
  const dependencies = { [open]: ">=1,<2", [closed]: "*" };
  const one = await deployFunction(handler("one"), { dependencies });
  const first = { word: "one", says: ["open 1.0", "closed 1.0"] };
  expect(JSON.parse((await ask(one, "/")).text)).toEqual(first);

  await indexes.put("open", open, "1.1", "open 1.1");
  await indexes.put("closed", closed, "1.0", "replaced");
  await call("PATCH", one, "", { handler_code: handler("two") });
  const { error } = (await call("POST", one, "/deploy")) as Function;
  expect(error).toMatch(/DO NOT MATCH THE HASHES[^]*closedly\d+==1\.0[^]*\[secret\][^]*Got/);
  expect(JSON.parse((await ask(one, "/")).text)).toEqual(first);

  expect(await indexes.put("closed", closed, "1.0", "closed 1.0")).toBe(hashes.closed);
  await deploy(one);
  expect(JSON.parse((await ask(one, "/")).text)).toEqual({ ...first, word: "two" });
  await call("PATCH", one, "", { handler_code: handler("one") });
  await deploy(one);
  expect(JSON.parse((await ask(one, "/")).text)).toEqual(first);

  const rows = await server.sql(
    "select image_id, lock from function_versions where function_id = $1 and state <> 'failed' order by number",
    [one.id],
  );
  const lock = `${closed}==1.0 --hash=sha256:${hashes.closed}\n${open}==1.0 --hash=sha256:${hashes.open}\n`;
  expect(rows.map((row) => row["lock"])).toEqual([lock, lock, lock]);
  expect(rows[2]!["image_id"]).toBe(rows[0]!["image_id"]);
  for (const secret of indexes.secrets) {
    expect([error, server.log].join("\n")).not.toContain(secret);
    const layers = join(server.dataDir, "oci/workspaces");
    const search = ["grep", "--recursive", "--files-with-matches", "--text", secret, layers];
    expect((await run(search, { okCodes: [0, 1] })).stdout).toBe("");
  }
});

test(
  "a failed installation of dependencies fails the deployment with the installer's message",
  { timeout: 600_000 },
  async () => {
    const body = {
      name: `python-${(made += 1)}-${process.pid}`,
      runtime: "python",
      handler_code: "def handler(request): return 'never'\n",
      dependencies: { absent: "==0.0.1" },
    };
    const { body: one } = await server.api("POST", "/api/v1/functions", { body });
    onTestFinished(() => call("DELETE", one));
    const failed = (await call("POST", one, "/deploy")) as Function;
    expect(failed).toMatchObject({ pending_deploy: true });
    expect(failed.error).toMatch(/No matching distribution found for absent==0\.0\.1/);
  },
);
