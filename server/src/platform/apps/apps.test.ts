import { expect, test, vi } from "vitest";
import { testDatabase } from "../../../test/harness.ts";
import { sealVariables } from "../environments/variables.ts";
import { statsOf } from "./monitoring.ts";
import { sleep } from "./running/sleep.ts";
import {
  appsHost,
  candidate,
  deploy,
  freePort,
  makeDeployment,
  makeEnvironment,
  program,
  visit,
} from "./testing/apps-host.ts";
import { wake } from "./running/wake.ts";
import { removeProject, stopEnvironment } from "./release/remove.ts";

const { db } = await testDatabase();
const host = await appsHost(db);
const { signal } = new AbortController();

async function texts(environmentId: string): Promise<string[]> {
  const { lines } = await host.apps.ring(environmentId).tail(1000);
  return lines.map(({ text }) => text);
}

async function instances(environmentId: string) {
  return db.selectFrom("app_instances").selectAll().where("environment_id", "=", environmentId).execute();
}

test("sends no request to a released app before takeOver, and every request after it", async () => {
  const { environment } = await makeEnvironment(db);
  const first = await candidate(host, environment, 1, { argv: program("one") });
  await first.waitHealthy(signal);
  await host.apps.routes.refresh(environment.id);
  expect(host.apps.routes.of(environment.id)).toMatchObject({ state: "down", machine: null, port: null });
  await first.takeOver(signal);
  expect(await visit(host, environment.host_label)).toBe("one");
  const row = await db
    .selectFrom("environments")
    .selectAll()
    .where("id", "=", environment.id)
    .executeTakeFirstOrThrow();
  expect(row.live_deployment_id).toBe(first.deploymentId);
});

test("marks a host whose last deployment failed, until a deployment is live", async () => {
  const { environment } = await makeEnvironment(db);
  const { id } = await makeDeployment(db, environment, 1);
  await db.updateTable("deployments").set({ status: "failed" }).where("id", "=", id).execute();
  const hasFailed = async () => {
    await host.apps.routes.refresh(environment.id);
    return host.apps.routes.of(environment.id)?.hasFailed;
  };
  expect(await hasFailed()).toBe(true);
  await makeDeployment(db, environment, 2, "building");
  expect(await hasFailed()).toBe(false);
  await deploy(host, environment, 3, { argv: program("one") });
  const failed = await makeDeployment(db, environment, 4);
  await db.updateTable("deployments").set({ status: "failed" }).where("id", "=", failed.id).execute();
  expect(await hasFailed()).toBe(false);
});

test("drains, ends and removes the earlier release when another one takes over", async () => {
  const { environment } = await makeEnvironment(db);
  await deploy(host, environment, 1, {
    argv: program("one", "process.on('SIGTERM', () => { console.log('asked to end'); process.exit(0); });"),
  });
  const machine = host.apps.routes.of(environment.id)?.machine;
  await deploy(host, environment, 2, { argv: program("two") });
  expect(await visit(host, environment.host_label)).toBe("two");
  await vi.waitFor(async () => expect(await instances(environment.id)).toHaveLength(1), 5_000);
  expect(host.front.drains).toContain(machine);
  expect(await texts(environment.id)).toContain("asked to end");
  expect((await host.driver.list()).map(({ id }) => id)).not.toContain(machine);
});

test("adds the bytes of visitors' requests to the app's network metrics", async () => {
  const { environment } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: program("one") });
  const first = host.apps.routes.of(environment.id)!;
  first.traffic!.rxBytes += 100;
  first.traffic!.txBytes += 200;
  const traffic = () => {
    const stats = statsOf(host.apps, environment.id);
    return [stats.network_rx_bytes, stats.network_tx_bytes];
  };
  expect(traffic()).toEqual([100, 200]);
  await deploy(host, environment, 2, { argv: program("two") });
  expect(traffic()).toEqual([0, 0]);
});

test("gives a process its variables in place of the image's, and PORT in place of both", async () => {
  const { environment } = await makeEnvironment(db);
  const made = await deploy(host, environment, 1, {
    argv: program("one"),
    env: { A: "mine", PORT: "1" },
  });
  const env = JSON.parse(await visit(host, environment.host_label, "/env")) as Record<string, string>;
  expect(env).toMatchObject({ A: "mine", PORT: String(made.port), HOST: "0.0.0.0" });
});

test("reports the exit code and last output of an app at once when it ends during its start", async () => {
  const { environment } = await makeEnvironment(db);
  const made = await candidate(host, environment, 1, {
    argv: [process.execPath, "-e", "console.error('no database'); process.exit(7)"],
  });
  await expect(made.waitHealthy(signal)).rejects.toThrow(/exit code 7\. Last output:\nno database/);
  await made.discard();
  expect(await instances(environment.id)).toEqual([]);
});

test("fails an app that listens on another port than PORT, and names that port and the fix", async () => {
  const own = await appsHost(db, { config: { appStartSeconds: "2" } });
  const { environment } = await makeEnvironment(db);
  // The fake machine has no kernel, so a file contains the port table.
  const table =
    "  0: 00000000:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12";
  const argv = [
    process.execPath,
    "-e",
    `require("fs").mkdirSync("proc/net", { recursive: true });
     require("fs").writeFileSync("proc/net/tcp", ${JSON.stringify(table)});
     setInterval(() => {}, 1000);`,
  ];
  const port = await freePort();
  const made = await candidate(own, environment, 1, { argv, port });
  await expect(made.waitHealthy(signal)).rejects.toThrow(
    new RegExp(
      `^Nothing listened on port ${port} within \\d s\\. The app listens on port 3000 instead: let it listen on \\$PORT, or set the project's port to 3000\\.`,
    ),
  );
  await made.discard();
});

test("waits beyond the start time for an app that writes output, and not for a silent one", async () => {
  const own = await appsHost(db, { config: { appStartSeconds: "3" } });
  const { environment } = await makeEnvironment(db);
  const port = await freePort();
  const busy = `
    let lines = 0;
    const starting = setInterval(() => {
      console.log("migrating " + lines);
      if (++lines < 15) return;
      clearInterval(starting);
      require("node:http").createServer((_, response) => response.end("up")).listen(${port});
    }, 300);`;
  const slow = await candidate(own, environment, 1, { argv: [process.execPath, "-e", busy], port });
  expect(await slow.waitHealthy(signal)).toBe(200);
  await slow.discard();
  const silent = [process.execPath, "-e", "setInterval(() => {}, 1000)"];
  const stuck = await candidate(own, environment, 2, { argv: silent });
  await expect(stuck.waitHealthy(signal)).rejects.toThrow(/Nothing listened on port \d+ within 3 s/);
  await stuck.discard();
});

test("logs each new status of a starting app until the app responds below 500", async () => {
  const { environment } = await makeEnvironment(db);
  const port = await freePort();
  const warming = `
    let asked = 0;
    require("node:http").createServer((_, response) => {
      response.statusCode = ++asked < 3 ? 503 : 200;
      response.end();
    }).listen(${port});`;
  const made = await candidate(host, environment, 1, { argv: [process.execPath, "-e", warming], port });
  const lines: string[] = [];
  expect(await made.waitHealthy(signal, (line) => void lines.push(line))).toBe(200);
  expect(lines).toEqual([`The app listens on port ${port}.\n`, `GET / on port ${port} responds with 503.\n`]);
  await made.discard();
});

test("reports a missing program to the owner", async () => {
  const { environment } = await makeEnvironment(db);
  // The error continues a sentence about the failed step.
  await expect(candidate(host, environment, 1, { argv: ["/no/such/program"] })).rejects.toMatchObject({
    name: "AppUnhealthy",
    message: expect.stringMatching(/^\/no\/such\/program .*\.$/),
  });
  expect(await instances(environment.id)).toEqual([]);
});

test("switches back without a lost request when another machine responds at the public address", async () => {
  const { environment } = await makeEnvironment(db);
  const first = await deploy(host, environment, 1, { argv: program("one") });
  const second = await candidate(host, environment, 2, { argv: program("two") });
  await second.waitHealthy(signal);
  host.front.failsNext = new Error("somebody else answered");
  await expect(second.takeOver(signal)).rejects.toMatchObject({
    name: "AppUnhealthy",
    message: expect.stringMatching(/^somebody else answered\. (?:It wrote|Last output)/),
  });
  expect(await visit(host, environment.host_label)).toBe("one");
  await second.discard();
  const row = await db
    .selectFrom("environments")
    .selectAll()
    .where("id", "=", environment.id)
    .executeTakeFirstOrThrow();
  expect(row.live_deployment_id).toBe(first.deploymentId);
  expect(await instances(environment.id)).toMatchObject([{ state: "live" }]);
});

test("restarts a live app that ends, and logs the restart", async () => {
  const { environment } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: program("one") });
  await visit(host, environment.host_label, "/exit").catch(() => {});
  await vi.waitFor(() => expect(host.apps.routes.of(environment.id)?.state).toBe("down"), 5_000);
  await vi.waitFor(() => expect(host.apps.routes.of(environment.id)?.state).toBe("live"), 8_000);
  expect(await visit(host, environment.host_label)).toBe("one");
  expect(await instances(environment.id)).toMatchObject([
    { restart_count: 1, last_exit_code: 3, state: "live" },
  ]);
  expect(await texts(environment.id)).toContain("It ended with exit code 3. It is restarted in 1 s.");
}, 20_000);

test("replaces a lost machine in the same private network", async () => {
  const { environment, workspace } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: program("one") });
  const machine = host.apps.routes.of(environment.id)?.machine ?? "";
  const networkOf = async (id: string | null | undefined) =>
    (await host.driver.list()).find((each) => each.id === id)?.spec?.privateNetwork;
  expect(await networkOf(machine)).toEqual({ group: workspace.id });
  host.driver.end(machine, "failed");
  await vi.waitFor(() => expect(host.apps.routes.of(environment.id)?.machine).toBeNull(), 5_000);
  await vi.waitFor(() => expect(host.apps.routes.of(environment.id)?.state).toBe("live"), 8_000);
  const next = host.apps.routes.of(environment.id)?.machine;
  expect(next).not.toBe(machine);
  expect(await networkOf(next)).toEqual({ group: workspace.id });
  expect(await visit(host, environment.host_label)).toBe("one");
}, 20_000);

test("sends one notification when an app runs out of memory repeatedly, even after an earlier end for another reason", async () => {
  const { environment } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: program("one") });
  const isBack = () =>
    vi.waitFor(() => expect(host.apps.routes.of(environment.id)?.state).toBe("live"), 20_000);
  const isDown = () =>
    vi.waitFor(() => expect(host.apps.routes.of(environment.id)?.state).toBe("down"), 20_000);
  await visit(host, environment.host_label, "/exit").catch(() => {});
  await isDown();
  await isBack();
  for (let times = 0; times < 2; times += 1) {
    host.driver.end(host.apps.routes.of(environment.id)?.machine ?? "", "out_of_memory");
    await isDown();
    await isBack();
  }
  const news = await db
    .selectFrom("notifications")
    .select("kind")
    .where("target", "@>", { id: environment.id } as never)
    .execute();
  expect(news).toEqual([{ kind: "out_of_memory" }]);
}, 90_000);

test("freezes a sleeping app, and wakes it with its memory", async () => {
  const { environment } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: program("one") });
  await sleep(host.apps, environment.id);
  const asleep = host.apps.routes.of(environment.id);
  expect(asleep?.state).toBe("asleep");
  expect((await host.driver.list()).find(({ id }) => id === asleep?.machine)?.state).toBe("frozen");
  await Promise.all([wake(host.apps, environment.id), wake(host.apps, environment.id)]);
  expect(host.apps.routes.of(environment.id)).toMatchObject({ state: "live", machine: asleep?.machine });
  expect(await visit(host, environment.host_label)).toBe("one");
});

test("does not wake an app while its workspace is suspended", async () => {
  const { environment, workspace } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: program("one") });
  await sleep(host.apps, environment.id);
  const suspend = (suspended_at: Date | null) =>
    db.updateTable("workspaces").set({ suspended_at }).where("id", "=", workspace.id).execute();
  await suspend(new Date());
  await expect(wake(host.apps, environment.id)).rejects.toMatchObject({ code: "account_suspended" });
  expect(host.apps.routes.of(environment.id)?.state).toBe("asleep");
  await suspend(null);
  await wake(host.apps, environment.id);
  expect(await visit(host, environment.host_label)).toBe("one");
});

test("refuses sleep for an app during its deployment, and without a deployment", async () => {
  const { environment } = await makeEnvironment(db);
  await expect(sleep(host.apps, environment.id)).rejects.toMatchObject({ code: "nothing_deployed" });
  await expect(wake(host.apps, environment.id)).rejects.toMatchObject({ code: "nothing_deployed" });
  await deploy(host, environment, 1, { argv: program("one") });
  await makeDeployment(db, environment, 2, "building");
  await expect(sleep(host.apps, environment.id)).rejects.toMatchObject({ code: "deployment_in_progress" });
});

test("wakes a sleeping app when a new deployment goes live", async () => {
  const { environment } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: program("one") });
  await sleep(host.apps, environment.id);
  await deploy(host, environment, 2, { argv: program("two") });
  expect(host.apps.routes.of(environment.id)?.state).toBe("live");
  await vi.waitFor(async () => expect(await instances(environment.id)).toHaveLength(1), 5_000);
});

test("gives changed variables to an app when it wakes", async () => {
  const { environment } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: program("one") });
  await sleep(host.apps, environment.id);
  const sealed = sealVariables(host.app, "environments", environment.id, { NEW: "yes" });
  await db.updateTable("environments").set({ env_sealed: sealed }).where("id", "=", environment.id).execute();
  await wake(host.apps, environment.id);
  expect(JSON.parse(await visit(host, environment.host_label, "/env"))).toMatchObject({ NEW: "yes" });
});

test("removes an app's machine, route and log, and removes them again without an error", async () => {
  const { environment, project } = await makeEnvironment(db);
  await deploy(host, environment, 1, { argv: program("one") });
  const machine = host.apps.routes.of(environment.id)?.machine;
  await removeProject(host.apps, project.id);
  await stopEnvironment(host.apps, environment.id);
  expect(host.apps.routes.of(environment.id)?.machine).toBeNull();
  expect((await host.driver.list()).map(({ id }) => id)).not.toContain(machine);
  expect(await texts(environment.id)).toEqual([]);
});

test("ends the wait for health when it is aborted, and removes the candidate", async () => {
  const { environment } = await makeEnvironment(db);
  const port = await freePort();
  const made = await candidate(host, environment, 1, { argv: ["sleep", "60"], port });
  await expect(made.waitHealthy(AbortSignal.timeout(300))).rejects.toThrow("timeout");
  await made.discard();
});
