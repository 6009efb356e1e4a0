import http from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, expect, test } from "vitest";
import { sleep as putToSleep } from "#platform/apps/running/sleep.ts";
import { appsHost, deploy, makeEnvironment, program } from "#platform/apps/testing/apps-host.ts";
import { testDatabase } from "../../test/harness.ts";
import type { App } from "../app.ts";
import { Addons } from "#platform/addons/addons.ts";
import { FunctionInstances } from "#platform/instances/instances.ts";
import { openIngress } from "./ingress.ts";

const { db } = await testDatabase();
const host = await appsHost(db, { config: { appsDomain: "apps.test", tlsMode: "off" } });
const opened = await openIngress(host.app as App, {
  apps: host.apps,
  functions: new FunctionInstances(host.app),
  addons: new Addons(host.app as App),
});
await opened.start();
afterAll(() => opened.close());
const server = opened.ingress.createServer({
  handle: (_request, response) => void response.writeHead(418).end(),
  upgrade: (_request, socket) => void socket.destroy(),
  clientError: (_error, socket) => void socket.destroy(),
  options: {},
});
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
afterAll(() => {
  server.closeAllConnections();
  server.close();
});

function get(
  label: string,
  agent: http.Agent | false,
): Promise<{ status: number | undefined; text: string }> {
  const { port } = server.address() as AddressInfo;
  return new Promise((resolve, reject) => {
    http
      .get({ host: "127.0.0.1", port, agent, headers: { host: `${label}.apps.test:8443` } }, (response) => {
        let text = "";
        response.on("data", (piece) => (text += String(piece)));
        response.on("end", () => resolve({ status: response.statusCode, text }));
      })
      .on("error", reject);
  });
}

async function countVisits(environmentId: string): Promise<number> {
  const rows = await db
    .selectFrom("request_minutes")
    .select("requests")
    .where("environment_id", "=", environmentId)
    .execute();
  return rows.reduce((sum, { requests }) => sum + requests, 0);
}

test("loses no visitor and counts none twice while releases replace each other", async () => {
  const { environment } = await makeEnvironment(db);
  const label = environment.host_label;
  await deploy(host, environment, 1, { argv: program("release 1") });
  const agent = new http.Agent({ keepAlive: true });
  const answers: { status: number | undefined; text: string }[] = [];
  let isOver = false;
  const load = [agent, agent, false, false].map(async (one) => {
    while (!isOver) answers.push(await get(label, one as http.Agent | false));
  });
  for (const number of [2, 3, 4]) {
    await deploy(host, environment, number, { argv: program(`release ${number}`) });
    expect((await get(label, false)).text).toBe(`release ${number}`);
  }
  isOver = true;
  await Promise.all(load);
  agent.destroy();
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
  expect(new Set(answers.map(({ text }) => text)).size).toBeGreaterThan(1);
  await expect.poll(() => countVisits(environment.id), { timeout: 10_000 }).toBe(answers.length + 3);
});

test("wakes a sleeping app for concurrent requests and serves all of them", async () => {
  const { environment } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: program("awake") });
  await putToSleep(host.apps, environment.id);
  expect(host.apps.routes.of(environment.id)?.state).toBe("asleep");
  const answers = await Promise.all(Array.from({ length: 20 }, () => get(environment.host_label, false)));
  expect(new Set(answers.map(({ text }) => text))).toEqual(new Set(["awake"]));
});
