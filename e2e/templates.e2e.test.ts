/**
 * Custom templates on real machines, on a separate server. The server has a small disk, little memory and a minute for
 * a build, so a hostile recipe reaches its limits soon. Builds can reach only the namespace that simulates the
 * internet.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, onTestFinished, test } from "vitest";
import { run } from "@kontor/runtime/exec.ts";
import {
  DNS_ADDRESS,
  METADATA_ADDRESS,
  watchInternet,
  WEB_ADDRESS,
} from "@kontor/runtime/network/testing/internet.ts";
import { makePerson, makeToken } from "../server/test/factories.ts";
import { openDatabase } from "../server/src/db/db.ts";
import type { Database } from "../server/src/schema.ts";
import { ensureEmbedded } from "../server/src/db/embedded/ensure-embedded.ts";
import type { Reply } from "./support/api.ts";
import { eventually, expectRefusal } from "./support/answers.ts";
import { traces } from "./support/host-state.ts";
import { type Server, startServer } from "./support/server.ts";

let server: Server;

beforeAll(async () => {
  server = await startServer({
    KONTOR_UPLINK: inject("internet"),
    KONTOR_DNS_SERVERS: DNS_ADDRESS,
    KONTOR_MACHINE_DISK_GB: "1",
    KONTOR_DEFAULT_EGRESS_ALLOWLIST: "web.test",
    KONTOR_BUILD_MEMORY_MB: "512",
    KONTOR_BUILD_TIMEOUT_MINUTES: "1",
    KONTOR_POOL_SIZE: "0",
    KONTOR_POOL_MAX: "0",
  });
});
afterAll(() => server?.destroy());

interface Template {
  id: string;
  status: string;
  error_message: string | null;
  tags: string[];
  [field: string]: unknown;
}

let counter = 0;

async function create(recipe: string[], more: Record<string, unknown> = {}): Promise<Template> {
  const made = await server.api("POST", "/v1/templates", {
    body: { name: `mine-${++counter}`, base_template: "debian-12", recipe, ...more },
  });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  expect(made.body.status).toBe("building");
  onTestFinished(async () => void (await remove(made.body.id)));
  return made.body as Template;
}

const remove = (id: string) => server.api("DELETE", `/v1/templates/${id}`);
const get = async (id: string) => (await server.api("GET", `/v1/templates/${id}`)).body as Template;
const waitForBuild = (id: string) =>
  eventually(
    () => get(id),
    ({ status }) => status !== "building",
    120_000,
  );

async function ready(recipe: string[], more: Record<string, unknown> = {}): Promise<Template> {
  const { id } = await create(recipe, more);
  const built = await waitForBuild(id);
  expect(built, JSON.stringify(built)).toMatchObject({ status: "ready", error_message: null });
  return built;
}

async function failure(recipe: string[], more: Record<string, unknown> = {}): Promise<string> {
  const { id } = await create(recipe, more);
  const built = await waitForBuild(id);
  expect(built.status, JSON.stringify(built)).toBe("failed");
  return built.error_message ?? "";
}

async function logOf(id: string): Promise<string> {
  const { body } = await server.api("GET", `/v1/templates/${id}/logs`);
  return body.items.map(({ text }: { text: string }) => text).join("");
}

async function sandbox(
  template: string,
  more: Record<string, unknown> = {},
): Promise<Record<string, string>> {
  const made = await server.api("POST", "/v1/sandboxes", { body: { template, network: "off", ...more } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  onTestFinished(async () => void (await server.api("DELETE", `/v1/sandboxes/${made.body.id}`)));
  return made.body;
}

async function output(box: Record<string, string>, command: string): Promise<string> {
  const ran = await server.api("POST", `/v1/sandboxes/${box["id"]}/exec`, { body: { command } });
  expect(ran.body.exit_code, JSON.stringify(ran.body)).toBe(0);
  return ran.body.stdout.trimEnd();
}

const imagesDirectory = () => join(server.dataDir, "machines/images");
const images = () => readdirSync(imagesDirectory());
/** Lists unfinished and half-removed images, which have a name with a dot. */
const listUnfinished = () => images().filter((name) => name.startsWith("."));
/** Returns the bytes of images and machines on the disk; hard links count once. */
async function bytes(): Promise<number> {
  const { stdout } = await run(["du", "-s", "--block-size=1", join(server.dataDir, "machines")]);
  return Number.parseInt(stdout, 10);
}
const noMachines = () =>
  expect
    .poll(() => traces(server.dataDir), { timeout: 30_000 })
    .toMatchObject({ processes: [], mounts: [], groups: [], loops: [], files: [], records: [] });

test("files, compiled programs and installed packages of a template are in every sandbox of the template", async () => {
  const control =
    "Package: kontor-test\\nVersion: 1.2\\nArchitecture: all\\nMaintainer: t <t@test>\\nDescription: t\\n";
  const template = await ready([
    "mkdir -p app && printf 'print(1)\\n' > app/main.py && pwd > where && echo $HOME $(id -u) >> where",
    `mkdir -p pkg/DEBIAN pkg/opt/kontor-test && printf '${control}' > pkg/DEBIAN/control && echo data > pkg/opt/kontor-test/data`,
    "dpkg-deb --build pkg kontor-test.deb && dpkg -i kontor-test.deb && rm -r pkg kontor-test.deb",
    "printf '#!/bin/sh\\necho ran\\n' > /usr/local/bin/tool && chmod 755 /usr/local/bin/tool && rm /etc/issue",
    "useradd -m builder && su builder -c 'echo mine > ~/note'",
  ]);
  expect(template).toMatchObject({ tags: ["default"], substituted: false });
  expect(template["size_mb"]).toBeGreaterThan(50);
  expect((template["contents"] as Record<string, string>)["debian"]).toMatch(/^12/);
  const box = await sandbox(template["name"] as string);
  expect(box).toMatchObject({ template: template["name"], template_id: template.id });
  expect(await output(box, "cat app/main.py where")).toBe("print(1)\n/workspace\n/root 0");
  expect(
    await output(box, "tool; cat /opt/kontor-test/data; dpkg -s kontor-test | grep -c 'install ok'"),
  ).toBe("ran\ndata\n1");
  expect(await output(box, "stat -c '%U %a' /home/builder/note; test -e /etc/issue || echo gone")).toBe(
    "builder 644\ngone",
  );
  const log = await logOf(template.id);
  expect(log).toContain("Step 3 of 5: dpkg-deb --build");
  expect(log).toContain("Setting up kontor-test (1.2)");
});

test("builds a template on a base with the files and the user of both; the base can be deleted", async () => {
  const base = await ready(["echo base > /opt/base", "su user -c 'echo mine > ~/note'"], { tags: ["v1"] });
  const reference = `${base["name"] as string}:v1`;
  const child = await ready(["rm /opt/base", "cat /home/user/note > /opt/child"], {
    base_template: reference,
  });
  expect(child).toMatchObject({ base_template: reference, base_template_id: base.id });
  await remove(base.id);
  await expect.poll(images, { timeout: 30_000 }).not.toContain(base.id);
  const box = await sandbox(child.id);
  expect(
    await output(box, "cat /opt/child; test -e /opt/base || echo gone; stat -c %U /home/user/note"),
  ).toBe("mine\ngone\nuser");
});

test("reports a failed step with its number, command and output", async () => {
  const why = await failure(["echo fine", "cd /nowhere && make", "echo never"]);
  expect(why).toMatch(
    /^Step 2 of 3 failed with exit code \d+: cd \/nowhere && make\. Last output:\n.*nowhere/,
  );
  expect(await failure(["kill -9 $$"])).toMatch(/was ended by signal 9/);
});

test("a template's name and tags refer to its builds, and other accounts cannot see the template", async () => {
  const name = `shared-${Date.now()}`;
  const one = await ready(["echo 1 > n"], { name, tags: ["v1"] });
  const two = await ready(["echo 2 > n"], { name });
  expect([one.tags, two.tags]).toEqual([["default", "v1"], []]);
  expect(await output(await sandbox(name), "cat n")).toBe("1");
  expect(await output(await sandbox(two.id), "cat n")).toBe("2");
  const moved = await server.api("PUT", `/v1/templates/${two.id}/tags/v1`);
  expect([moved.status, moved.body.tags]).toEqual([200, ["v1"]]);
  expect(await output(await sandbox(`${name}:v1`), "cat n")).toBe("2");
  expect((await server.api("DELETE", `/v1/templates/${two.id}/tags/v1`)).status).toBe(204);
  expectRefusal(
    await server.api("POST", "/v1/sandboxes", { body: { template: `${name}:v1` } }),
    400,
    "invalid_request",
  );

  const token = await strangersToken();
  const theirs = (method: string, path: string, body?: unknown): Promise<Reply> =>
    server.api(method, path, { token, ...(body === undefined ? {} : { body }) });
  expectRefusal(await theirs("GET", `/v1/templates/${one.id}`), 404, "template_not_found");
  expectRefusal(await theirs("DELETE", `/v1/templates/${one.id}`), 404, "template_not_found");
  expectRefusal(await theirs("GET", `/v1/templates/${one.id}/logs`), 404, "template_not_found");
  expectRefusal(await theirs("PUT", `/v1/templates/${one.id}/tags/x`), 404, "template_not_found");
  for (const template of [one.id, name, `${name}:default`])
    expectRefusal(await theirs("POST", "/v1/sandboxes", { template }), 400, "invalid_request");
  expect((await theirs("GET", "/v1/templates")).body.items).toEqual([]);
});

async function strangersToken(): Promise<string> {
  const { connection } = await ensureEmbedded(server.dataDir);
  const database = openDatabase<Database>(connection, { maxConnections: 1, onError: () => {} });
  try {
    const { user } = await makePerson(database.db, {
      workspace: { plan: "team", sandbox_tier: "enterprise" },
    });
    return (await makeToken(database.db, user.id)).plaintext;
  } finally {
    await database.close();
  }
}

test("runs the start command once in the background, with the sandbox's environment, and not again after a resume", async () => {
  const { id } = await create(["true"], { start_command: 'echo "up $WHO" >> /tmp/started; sleep 600' });
  const { name } = await waitForBuild(id);
  const box = await sandbox(name as string, { env: { WHO: "me" } });
  const path = `/v1/sandboxes/${box["id"]}`;
  expect(box["start_command_id"]).toMatch(/^cmd_/);
  const command = async () => (await server.api("GET", `${path}/commands/${box["start_command_id"]}`)).body;
  expect(await command()).toMatchObject({ status: "running" });
  expect(await output(box, "until [ -s /tmp/started ]; do sleep 0.05; done; cat /tmp/started")).toBe("up me");
  expect((await server.api("POST", `${path}/pause`)).status).toBe(200);
  expect((await server.api("POST", `${path}/resume`)).status).toBe(200);
  expect(await output(box, "cat /tmp/started; pgrep -c sleep")).toBe("up me\n1");
  expect(await command()).toMatchObject({ status: "running" });
});

test("a delete cancels a waiting or running build; running and paused sandboxes outlive their template", async () => {
  const running = await create(["sleep 50"]);
  const second = await create(["sleep 50"]);
  const waiting = await create(["echo never"]);
  await eventually(
    () => logOf(running.id),
    (log) => log.includes("Step 1"),
  );
  for (const { id } of [waiting, running, second]) expect((await remove(id)).status).toBe(204);
  for (const { id } of [waiting, running])
    expect((await server.api("GET", `/v1/templates/${id}`)).status).toBe(404);
  await noMachines();

  const built = await ready(["echo kept > file"]);
  const [box, paused] = [await sandbox(built.id), await sandbox(built.id)];
  expect((await server.api("POST", `/v1/sandboxes/${paused["id"]}/pause`)).status).toBe(200);
  expect((await remove(built.id)).status).toBe(204);
  expect((await remove(built.id)).status).toBe(404);
  expect(await output(box, "cat file; git --version | cut -c1-3")).toBe("kept\ngit");
  expect((await server.api("DELETE", `/v1/sandboxes/${box["id"]}`)).status).toBe(200);
  await noMachines();
  expect(images()).toContain(built.id);
  expect((await server.api("POST", `/v1/sandboxes/${paused["id"]}/resume`)).status).toBe(200);
  expect(await output(paused, "cat file")).toBe("kept");
  expect((await server.api("DELETE", `/v1/sandboxes/${paused["id"]}`)).status).toBe(200);
  await expect.poll(images, { timeout: 90_000 }).not.toContain(built.id);
});

test("ten failed builds leave only their reasons, and no files on the disk", async () => {
  // The first machine of a server stores the guest program, which later machines use too.
  await failure(["exit 1"]);
  await noMachines();
  await expect.poll(listUnfinished).toEqual([]);
  const [before, names] = [await bytes(), images()];
  const made = await Promise.all(
    Array.from({ length: 10 }, (_, n) => create([`head -c ${n}M /dev/urandom > /workspace/waste`, "exit 1"])),
  );
  for (const { id } of made) expect((await waitForBuild(id)).status).toBe("failed");
  await noMachines();
  await expect.poll(images).toEqual(names);
  // Directories may keep a block or two after their entries are removed.
  expect(Math.abs((await bytes()) - before)).toBeLessThan(256 * 1024);
});

test("a fork bomb, a full disk, too much memory and an endless step affect only their own build", async () => {
  const endless = create(["while :; do sleep 1; done"]);
  expect(await failure(["head -c 2G /dev/zero > fill"])).toMatch(
    /^Step 1 of 1 failed with exit code 1: .* The build's disk is full\..*No space left on device/s,
  );
  expect(await failure(["head -c 900M /dev/zero | tail -c 900M > /dev/null"])).toBe(
    "The build ran out of memory: it may use 512 MB.",
  );
  const bomb = await create(["bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 3; echo over"]);
  expect((await waitForBuild(bomb.id)).status).toMatch(/^(ready|failed)$/);
  const { id } = await endless;
  expect((await waitForBuild(id)).error_message).toMatch(
    /^Step 1 of 1 was still running when the build's 1 minutes were over: while :;/,
  );
  expect((await ready(["true"])).status).toBe("ready");
  await noMachines();
}, 240_000);

test("confines a build that creates links, devices, set-user-id programs, and strange or endless names as root", async () => {
  const host = mkdtempSync(join(tmpdir(), "kontor-e2e-hostile-"));
  onTestFinished(() => rmSync(host, { recursive: true }));
  for (const name of ["secret.log", "resolv.conf", ".keep"]) writeFileSync(join(host, name), "host");
  const passwd = readFileSync("/etc/passwd", "utf8");
  const template = await ready([
    // The server writes and removes files with these names in every image.
    `rm -rf /var/log /var/lib/apt /root && ln -s ${host} /var/log && ln -s ${host} /root && ln -s / /var/lib/apt`,
    `rm -rf /tmp && ln -s ${host} /tmp && rm -rf /persist && ln -s / /persist`,
    "mkfifo /opt/pipe && mknod /opt/sda b 8 0 && mknod /opt/mem c 1 1",
    "cp /bin/sh /opt/root-shell && ln /opt/root-shell /opt/again && chmod 4755 /opt/root-shell",
    `ln -s ${host}/secret.log /opt/leads-out && ln -s ../../../../../../../../etc/passwd /opt/up`,
    "mkdir -p /opt/names && cd /opt/names && touch -- -rf '*' '..x' \"$(printf 'line\\nbreak')\" 'ünï ✓'",
    "cd /opt && i=0; while [ $i -lt 60 ]; do mkdir d && cd d && i=$((i + 1)); done; echo deep > end",
  ]);
  expect(readdirSync(host).toSorted()).toEqual([".keep", "resolv.conf", "secret.log"]);
  for (const name of readdirSync(host)) expect(readFileSync(join(host, name), "utf8")).toBe("host");
  expect(readFileSync("/etc/passwd", "utf8")).toBe(passwd);
  const image = join(imagesDirectory(), template.id);
  // The base has a few devices in /dev, which every machine covers with its own file system.
  const devices = ["-type", "b", "-o", "-type", "c", "-o", "-type", "p", "-o", "-type", "s"];
  const { stdout } = await run(["find", join(image, "rootfs/opt"), ...devices]);
  expect(stdout).toBe("");
  // The set-user-id program of root is in a directory that only root may enter.
  expect((await run(["stat", "-c", "%a %U", image])).stdout).toBe("700 root\n");
  const box = await sandbox(template.id);
  expect(
    await output(box, "ls -A /opt/names | wc -l; stat -c %a /opt/again; readlink /opt/up; stat -c %F /tmp"),
  ).toBe("6\n4755\n../../../../../../../../etc/passwd\ndirectory");
  expect(await output(box, "cd /opt; while [ -d d ]; do cd d; done; cat end")).toBe("deep");
  // The base image is unchanged.
  expect(await output(await sandbox("debian-12"), "stat -c %F /tmp /root; ls /opt | wc -l")).toBe(
    "directory\ndirectory\n0",
  );

  expect(await failure(["truncate -s 50G /opt/sparse"])).toMatch(
    /the created and changed files exceed 1024 MiB/,
  );
  expect(await failure(["rm -rf --no-preserve-root / 2>/dev/null; true", "echo on"])).toMatch(
    /^The steps damaged the machine: /,
  );
});

test("a restricted build reaches only hosts of the installation's allowlist, and no private address", async () => {
  const internet = watchInternet(inject("internet"));
  await internet.forget();
  const door = (address: string, port: number) =>
    `! timeout 5 bash -c 'exec 3<>/dev/tcp/${address}/${port}' 2>/dev/null`;
  const template = await ready([
    "curl -sSf -m 10 http://web.test/ > fetched",
    "curl -s -m 10 http://other.test/ > refused; true",
    "curl -s -m 10 -o /dev/null -w '%{http_code}' http://10.66.0.1/ > private; true",
    `curl -s -m 10 -o /dev/null -w '%{http_code}' http://${METADATA_ADDRESS}/ > metadata; true`,
    [
      door(METADATA_ADDRESS, 80),
      door("10.66.0.1", 80),
      door(WEB_ADDRESS, 80),
      door("10.0.0.1", 22),
      door("10.0.0.1", server.description.port),
    ].join(" && "),
  ]);
  const box = await sandbox(template.id);
  expect(await output(box, "cat fetched")).toBe("the internet of the tests");
  expect(await output(box, "cat refused")).toContain("other.test is not on this machine's allowlist");
  expect(await output(box, "cat private metadata")).toBe("403403");
  // The proxy belongs to the build, and its variables are not in the image.
  expect(await output(box, "env | grep -ic proxy || true")).toBe("0");
  const rows = await internet.seen();
  for (const address of [METADATA_ADDRESS, "10.66.0.1"])
    expect(rows.filter(({ destination, packets }) => destination === address && packets > 0)).toEqual([]);
});

test.each(["build.started", "build.stepped", "build.captured"])(
  "after kill -9 at %s the next server completes the build, and the first attempt leaves no data",
  async (point) => {
    await noMachines();
    let id = "";
    await server.dieAt(point, async () => ({ id } = await create(["echo built > file"])));
    expect(await waitForBuild(id)).toMatchObject({ status: "ready", error_message: null });
    expect(listUnfinished()).toEqual([]);
    expect(await output(await sandbox(id), "cat file")).toBe("built");
    const { items } = (
      await server.api("GET", "/v1/sandboxes/events?event_type=template.build_finished&limit=1")
    ).body;
    expect(items[0]).toMatchObject({ outcome: "ok", detail: { template_id: id, status: "ready" } });
  },
  240_000,
);

test("restarts a build after kill -9 during a step", async () => {
  const { id } = await create(["echo once; sleep 2", "echo built > file"]);
  await eventually(
    () => logOf(id),
    (log) => log.includes("once"),
  );
  await server.kill9();
  await server.start();
  expect((await waitForBuild(id)).status).toBe("ready");
  expect((await logOf(id)).match(/Step 1 of 2/g)).toHaveLength(1);
  await remove(id);
  await noMachines();
  await expect.poll(images).not.toContain(id);
}, 240_000);

test("the server's log contains no text of a recipe", async () => {
  await failure(["echo sw0rdfish-in-the-recipe; exit 1"]);
  expect(server.log).not.toContain("sw0rdfish");
});
