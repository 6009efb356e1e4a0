/**
 * Functions from outside: created, deployed by real builds, and invoked by the API and at their address. The server is
 * killed (kill -9) at several points.
 */
import { afterAll, afterEach, beforeAll, expect, inject, onTestFinished, test } from "vitest";
import http from "node:http";
import { eventually } from "./support/answers.ts";
import { type Server, startServer } from "./support/server.ts";

let server: Server;
let made = 0;

beforeAll(async () => {
  server = await startServer({ KONTOR_POOL_SIZE: "0", KONTOR_UPLINK: inject("internet") }, ["node-22"]);
});
afterAll(() => server?.destroy());
afterEach(() => server.start());

interface Function {
  id: string;
  slug: string;
  status: string;
  error: string | null;
  pending_deploy: boolean;
  api_key: string | null;
}

const saying = (text: string) => `let asked = 0;
export default async (request) => {
  asked += 1;
  console.log("asked", new URL(request.url).pathname);
  return Response.json({ text: ${JSON.stringify(text)}, asked, greeting: process.env.GREETING ?? null });
};`;

async function make(more: object = {}): Promise<Function> {
  const name = `hello-${(made += 1)}-${process.pid}`;
  const body = { name, runtime: "nodejs", handler_code: saying("one"), ...more };
  const reply = await server.api("POST", "/api/v1/functions", { body });
  expect(reply.status, JSON.stringify(reply.body)).toBe(201);
  onTestFinished(async () => {
    await server.api("DELETE", `/api/v1/functions/${reply.body.id}`);
  });
  return reply.body as Function;
}

async function call(method: string, { id }: Pick<Function, "id">, path = "", body?: object) {
  const reply = await server.api(method, `/api/v1/functions/${id}${path}`, body ? { body } : {});
  return reply.body;
}

const deploy = async (one: Function) => (await call("POST", one, "/deploy")) as Function;
const invoke = (one: Function, body: object = {}) => call("POST", one, "/invoke", body);

/** Requests a function at its address, on a new connection. */
function ask(
  { slug }: Function,
  headers: Record<string, string> = {},
): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const { port } = server.description;
    const host = `${slug}.fn.apps.localhost`;
    const request = http.get({
      host: "127.0.0.1",
      port,
      path: "/asked",
      headers: { host, ...headers },
      agent: false,
    });
    request.once("error", reject);
    request.once("response", (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (piece) => (text += piece));
      response.once("error", reject);
      response.once("end", () => resolve({ status: response.statusCode ?? 0, text }));
    });
  });
}

test(
  "deploys a function, invokes it, reads its metrics, changes its code and deploys it again",
  { timeout: 300_000 },
  async () => {
    const one = await make({ env_vars: { GREETING: "moin" } });
    expect(await ask(one)).toMatchObject({ status: 404 });
    const refused = await invoke(one);
    expect(refused.code).toBe("function_not_deployed");

    const live = await deploy(one);
    expect(live).toMatchObject({ error: null, pending_deploy: false });
    expect(["live", "idle"]).toContain(live.status);
    const answer = await invoke(one, { method: "GET", path: "/by-api" });
    expect(answer, JSON.stringify(answer)).toMatchObject({ status: 200, body_base64: null });
    expect(JSON.parse(answer.body)).toEqual({ text: "one", asked: 1, greeting: "moin" });
    expect(JSON.parse((await ask(one)).text)).toMatchObject({ text: "one", asked: 2 });
    const logs = await eventually(
      () => call("GET", one, "/logs?lines=1000"),
      ({ lines }) => lines.some(({ text }: { text: string }) => text === "asked /asked"),
    );
    const line = logs.lines.find(({ text }: { text: string }) => text === "asked /asked");
    expect(line).toMatchObject({ stream: "stdout", level: "info", request_id: expect.any(String) });
    const metrics = await eventually(
      () => call("GET", one, "/metrics?period=5m"),
      ({ requests }) => requests >= 3,
    );
    // A request before the first deployment also counts.
    expect(metrics).toMatchObject({ requests: 3, error_rate: 0 });

    await call("PATCH", one, "", { handler_code: saying("two") });
    expect(JSON.parse((await invoke(one)).body)).toMatchObject({ text: "one" });
    expect(await deploy(one)).toMatchObject({ error: null, pending_deploy: false });
    expect(JSON.parse((await invoke(one)).body)).toMatchObject({ text: "two", asked: 1 });

    await call("PATCH", one, "", { handler_code: saying("one") });
    expect(await deploy(one)).toMatchObject({ error: null });
    expect(JSON.parse((await invoke(one)).body)).toMatchObject({ text: "one" });
  },
);

test(
  "a handler that does not load fails its deployment, and the previous deployment stays live",
  { timeout: 300_000 },
  async () => {
    const one = await make();
    expect(await deploy(one)).toMatchObject({ error: null });
    await call("PATCH", one, "", { handler_code: "export default (" });
    const failed = await deploy(one);
    expect(failed).toMatchObject({ pending_deploy: true });
    expect(failed.error).toContain("SyntaxError");
    expect(JSON.parse((await invoke(one)).body)).toMatchObject({ text: "one" });
    await call("PATCH", one, "", { handler_code: 'import "not-there"; export default () => 1' });
    expect((await deploy(one)).error).toContain("not-there");
  },
);

test("an API key grants access at once, and a rotated key grants none", { timeout: 300_000 }, async () => {
  const one = await make({ auth_mode: "api_key" });
  expect(await deploy(one)).toMatchObject({ error: null });
  expect((await ask(one)).status).toBe(401);
  expect((await ask(one, { "x-api-key": one.api_key! })).status).toBe(200);
  expect((await ask(one, { authorization: `Bearer ${one.api_key}` })).status).toBe(200);
  const next = (await call("POST", one, "/rotate-api-key")) as Function;
  expect((await ask(one, { "x-api-key": one.api_key! })).status).toBe(401);
  expect((await ask(one, { "x-api-key": next.api_key! })).status).toBe(200);
  expect((await invoke(one)).status).toBe(200);
  await call("PATCH", one, "", { auth_mode: "none" });
  expect((await ask(one)).status).toBe(200);
  expect(server.log).not.toContain(one.api_key);
});

test.each(["app_build.made", "function_deploy.built", "function_deploy.proved", "function_deploy.switched"])(
  "the next server continues a deployment after kill -9 at %s",
  { timeout: 300_000 },
  async (point) => {
    const one = await make();
    await server.dieAt(point, () => call("POST", one, "/deploy?wait=false").catch(() => undefined));
    const live = await eventually(
      () => call("GET", one) as Promise<Function>,
      ({ status }) => status !== "building" && status !== "created",
      120_000,
    );
    expect(live).toMatchObject({ error: null, pending_deploy: false });
    expect(JSON.parse((await invoke(one)).body)).toMatchObject({ text: "one" });
  },
);

test("a deleted function serves no request and leaves no images", { timeout: 300_000 }, async () => {
  const one = await make();
  expect(await deploy(one)).toMatchObject({ error: null });
  await call("DELETE", one);
  expect(
    await eventually(
      () => ask(one),
      ({ status }) => status === 404,
    ),
  ).toMatchObject({ status: 404 });
  expect((await call("GET", one)).code).toBe("function_not_found");
});
