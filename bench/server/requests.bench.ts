/**
 * CPU time of the server for requests that are expensive on purpose: bodies with hundreds of thousands of keys, deep
 * bodies, and long lists of wrong values. The benchmark measures CPU time and not latency, because other callers lose
 * CPU time.
 */
import { request } from "node:http";
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { cpuSeconds } from "../support/processes.ts";

export const name = "requests";

const rounds = 50;

const object = (fields: string): Buffer => Buffer.from(`{${fields}}`);
const keys = (count: number): string => Array.from({ length: count }, (_, n) => `"k${n}":1`).join(",");

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  const exec = (body: Buffer) => async () =>
    (await api.send("POST", "/v1/sandboxes/no-such-sandbox/exec", body)).status;
  const signIn = (body: Buffer) => () => withoutToken(`${context.baseUrl}/api/v1/session`, body);
  const wrongParts = `"command":"true","args":[${"1,".repeat(400_000)}1]`;
  await measure(context, "an ordinary request", 200, async () => {
    const { status } = await api.send("GET", "/v1/sandboxes");
    return status;
  });
  const many = object(`"command":"true",${keys(330_000)}`);
  await measure(context, `330,000 unknown keys, ${mebibytes(many)}`, 400, exec(many), 20);
  const key = object(`"command":"true","${"k".repeat(15 * 1024 ** 2)}":1`);
  await measure(context, "one key of 15 MiB", 400, exec(key));
  const deep = object(`"command":"true","env":${"[".repeat(150_000)}`);
  await measure(context, `150,000 levels, ${mebibytes(deep)}`, 400, exec(deep));
  const list = object(wrongParts);
  await measure(context, `a list of 400,000 numbers in place of texts, ${mebibytes(list)}`, 400, exec(list));
  const open = object(`"email":"a@b.example","password":"secret",${keys(80_000)}`);
  await measure(context, `80,000 unknown keys without a token, ${mebibytes(open)}`, 413, signIn(open), 2);
  const small = object(`"email":"a@b.example","password":"secret",${keys(1_300)}`);
  await measure(context, "1,300 unknown keys without a token, 16 KiB", 422, signIn(small), 2);
}

const mebibytes = (body: Buffer): string => `${(body.length / 1024 ** 2).toFixed(1)} MiB`;

async function measure(
  context: BenchContext,
  what: string,
  expected: number,
  send: () => Promise<number>,
  atMost?: number,
): Promise<void> {
  context.progress(what);
  const check = async () => {
    const status = await send();
    if (status !== expected) throw new Error(`${what}: ${status} in place of ${expected}`);
  };
  for (let round = 0; round < 5; round++) await check();
  const before = cpuSeconds(context.serverPid);
  for (let round = 0; round < rounds; round++) await check();
  const value = ((cpuSeconds(context.serverPid) - before) / rounds) * 1000;
  const bar = atMost === undefined ? {} : { bar: { atMost } };
  context.report({ what: `CPU time: ${what}`, value, unit: "ms", ...bar, note: `n=${rounds}` });
}

/** Sends a request on its own connection, because a server may close a connection when it refuses the body. */
function withoutToken(url: string, body: Buffer): Promise<number> {
  return new Promise((resolve, reject) => {
    const headers = { "content-type": "application/json", "content-length": body.length };
    request(url, { method: "POST", headers, agent: false }, (response) => {
      response.resume();
      response.on("end", () => resolve(response.statusCode ?? 0));
    })
      .on("error", reject)
      .end(body);
  });
}
