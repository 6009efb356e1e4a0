import { expect, test } from "vitest";
import { testDatabase } from "../../../../test/harness.ts";
import { RequestLog } from "./request-log.ts";
import { appsHost, deploy, makeEnvironment, program } from "../testing/apps-host.ts";

const { db } = await testDatabase();
const host = await appsHost(db);
const log = new RequestLog(host.apps);

/** A web server whose command is like that of a static site. */
const site = () => [...program("site"), "nginx", "-e", "stderr", "-c", "/etc/nginx/site.conf"];
const requestsIn = async (environmentId: string) => {
  const { lines } = await host.apps.ring(environmentId).tail(1000);
  return lines.map(({ text }) => text).filter((text) => /^(GET|POST|\d+ more) /.test(text));
};

test("logs the requests of a static site without their query, and none of another app", async () => {
  const { environment } = await makeEnvironment(db);
  const other = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: site() });
  await deploy(host, other.environment, 1, { argv: program("app") });
  for (const { id } of [environment, other.environment]) {
    log.observed(id, { method: "GET", path: "/a?token=secret", status: 200, ms: 3.4 });
    log.observed(id, { method: "POST", path: "/\u00e4", status: 404, ms: 0 });
  }
  log.flush();
  await expect.poll(() => requestsIn(environment.id)).toEqual(["GET /a 200 3 ms", "POST /? 404 0 ms"]);
  expect(await requestsIn(other.environment.id)).toEqual([]);
});

test("logs a bounded number of lines in a flood of requests, and counts the rest", async () => {
  const { environment } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: site() });
  const path = `/${"x".repeat(5000)}`;
  for (let n = 0; n < 1000; n += 1) log.observed(environment.id, { method: "GET", path, status: 200, ms: 1 });
  log.flush();
  await expect.poll(async () => (await requestsIn(environment.id)).length).toBe(51);
  const lines = await requestsIn(environment.id);
  expect(lines[0]!.length).toBeLessThan(600);
  expect(lines.at(-1)).toBe("950 more requests in this second are not listed.");
});
