/**
 * Templates from a Dockerfile and from an image, built by the enclosed builder and booted as sandboxes. No registry
 * responds in these tests, so each template uses a base that the host makes itself.
 */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, onTestFinished, test } from "vitest";
import { DNS_ADDRESS } from "@kontor/runtime/network/testing/internet.ts";
import { eventually, expectRefusal } from "./support/answers.ts";
import { type Server, startServer } from "./support/server.ts";

let server: Server;

beforeAll(async () => {
  server = await startServer({
    KONTOR_UPLINK: inject("internet"),
    KONTOR_DNS_SERVERS: DNS_ADDRESS,
    KONTOR_BUILD_MEMORY_MB: "512",
    KONTOR_POOL_SIZE: "0",
    KONTOR_POOL_MAX: "1",
  });
});
afterAll(() => server?.destroy());

let counter = 0;

interface Template {
  id: string;
  name: string;
  status: string;
  error_message: string | null;
  [field: string]: unknown;
}

const get = async (id: string) => (await server.api("GET", `/v1/templates/${id}`)).body as Template;
const remove = (id: string) => server.api("DELETE", `/v1/templates/${id}`);

async function create(body: Record<string, unknown>): Promise<Template> {
  const made = await server.api("POST", "/v1/templates", {
    body: { name: `of-file-${++counter}`, ...body },
  });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  onTestFinished(async () => void (await remove(made.body.id)));
  return made.body as Template;
}

async function createAndWait(body: Record<string, unknown>): Promise<Template> {
  const { id } = await create(body);
  return eventually(
    () => get(id),
    ({ status }) => status !== "building",
    240_000,
  );
}

async function ready(body: Record<string, unknown>): Promise<Template> {
  const built = await createAndWait(body);
  expect(built, JSON.stringify(built)).toMatchObject({ status: "ready", error_message: null });
  return built;
}

async function logOf(id: string): Promise<string> {
  const { body } = await server.api("GET", `/v1/templates/${id}/logs`);
  return body.items.map(({ text }: { text: string }) => text).join("");
}

async function sandbox(template: string, more: Record<string, unknown> = {}): Promise<string> {
  const made = await server.api("POST", "/v1/sandboxes", { body: { template, network: "off", ...more } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  onTestFinished(async () => void (await server.api("DELETE", `/v1/sandboxes/${made.body.id}`)));
  return made.body.id;
}

const run = async (id: string, body: Record<string, unknown>) =>
  server.api("POST", `/v1/sandboxes/${id}/exec`, { body });

async function output(id: string, command: string, more: Record<string, unknown> = {}): Promise<string> {
  const ran = await run(id, { command, ...more });
  expect(ran.body.exit_code, JSON.stringify(ran.body)).toBe(0);
  return ran.body.stdout.trimEnd();
}

const post = async (path: string, body?: Record<string, unknown>) => {
  const made = await server.api("POST", path, body === undefined ? {} : { body });
  expect(made.status, JSON.stringify(made.body)).toBeLessThan(300);
  return made.body;
};

const dockerfile = `FROM debian:12
RUN useradd -m -u 1234 app && echo built > /opt/built
ENV COLOR=red
WORKDIR /srv/app
RUN chown app /srv/app && rm -f /bin/bash /usr/bin/bash
USER app
`;

test("sandboxes of a Dockerfile run commands with its ENV, WORKDIR and USER, and pause, resume, fork and snapshot", async () => {
  const template = await ready({ dockerfile, start_command: "echo $COLOR > started" });
  expect(template).toMatchObject({
    base_template: "debian:12",
    recipe: [],
    dockerfile,
    network: "open",
    cwd: "/srv/app",
    user: "app",
    tags: ["default"],
  });
  expect(await logOf(template.id)).toMatch(/STEP 2\/6: RUN useradd/);
  const id = await sandbox(template.name);
  const path = `/v1/sandboxes/${id}`;
  expect(await output(id, "id -u; pwd; echo $COLOR $HOME; cat /opt/built")).toBe(
    "1234\n/srv/app\nred /home/app\nbuilt",
  );
  expect(await output(id, "until [ -s started ]; do sleep 0.05; done; cat started")).toBe("red");
  expect(await output(id, "id -u; pwd", { user: "root", cwd: "/" })).toBe("0\n/");
  await post(`${path}/files`, { path: "/workspace/a.txt", content_text: "up" });
  expect(await output(id, "cat /workspace/a.txt")).toBe("up");
  const command = await post(`${path}/commands`, { command: "id -un > who; sleep 600" });
  expect(await output(id, "until [ -s who ]; do sleep 0.05; done; cat who; echo kept > note")).toBe("app");

  await post(`${path}/pause`);
  await post(`${path}/resume`);
  expect(await output(id, "cat note; id -un; pwd")).toBe("kept\napp\n/srv/app");
  expect((await server.api("GET", `${path}/commands/${command.id}`)).body).toMatchObject({
    status: "running",
  });
  const fork = await post(`${path}/fork`, {});
  const snapshot = await post(`${path}/snapshots`, {});
  const restored = await post("/v1/sandboxes", { snapshot: snapshot.id, network: "off" });
  for (const each of [fork.items[0].id as string, restored.id as string]) {
    onTestFinished(async () => void (await server.api("DELETE", `/v1/sandboxes/${each}`)));
    expect(await output(each, "cat note; id -un; pwd; echo $COLOR")).toBe("kept\napp\n/srv/app\nred");
  }
  await server.api("DELETE", `/v1/sandboxes/snapshots/${snapshot.id}`);
  expectRefusal(
    await server.api("POST", `${path}/code`, { body: { code: "1" } }),
    409,
    "interpreter_unavailable",
  );
}, 400_000);

test("takes the steps of an unchanged Dockerfile from the build cache", async () => {
  const text = `FROM debian:12\nRUN head -c 8 /dev/urandom | od -An -tx1 > /opt/random\n`;
  const [one, two] = [await ready({ dockerfile: text }), await ready({ dockerfile: text })];
  expect(await logOf(two.id)).toContain("Using cache");
  const [a, b] = [await sandbox(one.id), await sandbox(two.id)];
  expect(await output(a, "cat /opt/random")).toBe(await output(b, "cat /opt/random"));
}, 400_000);

test("a recipe builds on a Dockerfile's template, and keeps the template's files, users and defaults", async () => {
  const base = await ready({ dockerfile });
  const child = await ready({
    base_template: base.name,
    recipe: ["cat /opt/built > /opt/child && rm /opt/built", "stat -c %U /srv/app /home/app > /opt/owners"],
  });
  expect(child).toMatchObject({ base_template_id: base.id, cwd: "/srv/app", user: "app" });
  expect((await remove(base.id)).status).toBe(204);
  await expect
    .poll(() => readdirSync(join(server.dataDir, "machines/images")), { timeout: 60_000 })
    .not.toContain(base.id);
  const id = await sandbox(child.id);
  expect(
    await output(id, "cat /opt/child /opt/owners; test -e /opt/built || echo gone; id -un; echo $COLOR"),
  ).toBe("built\napp\napp\ngone\napp\nred");
  expect(await output(id, "stat -c '%a' /tmp; echo x > /tmp/x; test -d /workspace && echo there")).toBe(
    "1777\nthere",
  );
}, 400_000);

test("makes a template of an image; without a shell in the image, exec runs programs by args", async () => {
  const image = await ready({ image: "debian:12" });
  expect(image).toMatchObject({
    image: "debian:12",
    base_template: "debian:12",
    dockerfile: null,
    user: null,
  });
  expect(await output(await sandbox(image.id), "id -u; pwd")).toBe("0\n/workspace");

  const bare = await ready({
    dockerfile: [
      "FROM debian:12 AS full",
      "FROM scratch",
      "COPY --from=full /lib64/ld-linux-x86-64.so.2 /lib64/",
      "COPY --from=full /lib/x86_64-linux-gnu/libc.so.6 /lib/x86_64-linux-gnu/",
      "COPY --from=full /usr/bin/echo /echo",
    ].join("\n"),
  });
  expect(await logOf(bare.id)).toContain("Warning: the image has no working /bin/sh.");
  const id = await sandbox(bare.id);
  expect((await run(id, { args: ["/echo", "runs"] })).body).toMatchObject({ exit_code: 0, stdout: "runs\n" });
  // The image has no /workspace, the default directory of uploaded files.
  const path = `/v1/sandboxes/${id}/files`;
  await post(path, { path: "/workspace/a.txt", content_text: "up" });
  expect((await server.api("GET", `${path}/stat?path=/workspace`)).body).toMatchObject({ mode: 0o755 });
  const refused = await run(id, { command: "true" });
  expect(refused.body).toMatchObject({ code: "exec_failed" });
}, 400_000);

test("reports a failed instruction and an unknown image as the reason of a failed build", async () => {
  const failed = await createAndWait({ dockerfile: "FROM debian:12\nRUN echo lost >&2 && exit 3\n" });
  expect(failed).toMatchObject({ status: "failed", tags: [] });
  expect(failed.error_message).toMatch(/RUN echo lost >&2 && exit 3 failed: .*3.*Last output:\n.*lost/s);
  const unknown = await createAndWait({ dockerfile: "FROM no-such-registry.test/no/such:1\n" });
  expect(unknown.error_message).toMatch(/no-such-registry\.test\/no\/such:1/);
  expect((await remove(failed.id)).status).toBe(204);
}, 400_000);

test("a delete cancels a running build, and a build continues after kill -9 of the server", async () => {
  const slow = "FROM debian:12\nRUN echo begun && sleep 100\n";
  const { id } = await create({ dockerfile: slow });
  await eventually(
    () => logOf(id),
    (log) => log.includes("begun"),
    120_000,
  );
  expect((await remove(id)).status).toBe(204);
  // The workspace's next build starts only after the cancelled build has ended.
  const next = await create({ dockerfile: "FROM debian:12\nRUN sleep 5 && echo done > /opt/done\n" });
  await eventually(
    () => logOf(next.id),
    (log) => log.includes("STEP 2/2"),
    60_000,
  );
  await server.kill9();
  await server.start();
  const built = await eventually(
    () => get(next.id),
    ({ status }) => status !== "building",
    240_000,
  );
  expect(built, JSON.stringify(built)).toMatchObject({ status: "ready", error_message: null });
  expect(await output(await sandbox(next.id), "cat /opt/done")).toBe("done");
}, 400_000);
