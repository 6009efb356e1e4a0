/** Deployments of images from a registry: real layers, real machines, and a registry on loopback. */
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";
import { makeImage, type TestImage } from "@kontor/server/builds/registry/testing/image.ts";
import { TestRegistry } from "@kontor/server/builds/registry/testing/registry.ts";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, test } from "vitest";
import { deleteProject, waitForDeployment, makeProject, type Project, visit } from "../support/projects.ts";
import { type Server, startServer } from "../support/server.ts";

const account = { username: "ci", password: "canary-registry-password" };

/** Code of a static web server in one file, which responds with the text of /text. */
const program = `
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
  char text[512] = {0}, answer[1024], request[4096];
  int file = open("/text", O_RDONLY);
  if (file < 0 || read(file, text, sizeof text - 1) < 0) return 2;
  const char *port = getenv("PORT");
  if (!port) return 3;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
  int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 16)) return 4;
  int length = snprintf(answer, sizeof answer,
    "HTTP/1.1 200 OK\\r\\nContent-Length: %zu\\r\\nConnection: close\\r\\n\\r\\n%s", strlen(text), text);
  for (;;) {
    int client = accept(listener, 0, 0);
    if (client < 0) continue;
    if (read(client, request, sizeof request) > 0 && write(client, answer, (size_t)length) != length) return 5;
    shutdown(client, SHUT_WR);
    while (read(client, request, sizeof request) > 0) {}
    close(client);
  }
}
`;

let server: Server;
let registry: TestRegistry;
let binary: Buffer;

beforeAll(async () => {
  registry = await TestRegistry.open({ auth: { kind: "bearer", ...account }, hasStorage: true });
  const directory = await mkdtemp(join(tmpdir(), "kontor-web-"));
  await writeFile(join(directory, "web.c"), program);
  await run(["gcc", "-static", "-s", "-O1", "-o", join(directory, "web"), join(directory, "web.c")]);
  binary = await readFile(join(directory, "web"));
  await rm(directory, { recursive: true });
  server = await startServer({
    KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8",
    KONTOR_POOL_SIZE: "0",
    KONTOR_APP_START_SECONDS: "20",
    KONTOR_RATE_LIMITS: "off",
  });
});
afterAll(async () => {
  await server?.destroy();
  await registry?.[Symbol.asyncDispose]();
});
afterEach(() => server.start());

function saying(text: string, config: Record<string, unknown> = {}): TestImage {
  const layers = [[{ path: "web", bytes: binary, mode: 0o755 }], [{ path: "text", bytes: text }]];
  return makeImage(layers, {
    config: { Entrypoint: ["/web"], ExposedPorts: { "4000/tcp": {} }, User: "1000:1000", ...config },
  });
}

async function openProject(more: Record<string, unknown> = {}): Promise<Project> {
  const registry_credential = { registry: registry.host, ...account };
  const project = await makeProject(server, { registry_credential, ...more });
  onTestFinished(() => deleteProject(server, project));
  return project;
}

const path = (project: Project, image: string) =>
  `/api/v1/projects/${project.id}/deployments?image=${encodeURIComponent(image)}`;

async function deployImage(project: Project, image: string) {
  const { status, body } = await server.api("POST", path(project, image));
  expect(status, JSON.stringify(body)).toBe(201);
  return waitForDeployment(server, project);
}

test(
  "pulls and serves an image, replaces it by a newer tag, and rolls back without another pull",
  { timeout: 300_000 },
  async () => {
    const project = await openProject();
    const image = `${registry.host}/team/app:1`;
    const digest = registry.push("team/app:1", saying("one"));
    const first = await deployImage(project, image);
    expect(first).toMatchObject({ status: "live", error: null, image: { reference: image, digest } });
    expect(first.steps.map(({ name }) => name)).toEqual([
      "pull",
      "detect",
      "build",
      "scan",
      "release",
      "health",
      "route",
    ]);
    expect(await visit(server, project)).toEqual({ status: 200, text: "one" });

    const newer = registry.push("team/app:1", saying("two"));
    expect(await deployImage(project, image)).toMatchObject({
      status: "live",
      number: 2,
      image: { digest: newer },
    });
    expect(await visit(server, project)).toEqual({ status: 200, text: "two" });

    const requests = registry.seen.length;
    const { status, body } = await server.api("POST", `/api/v1/deployments/${first.id}/rollback`);
    expect(status, JSON.stringify(body)).toBe(200);
    expect(await waitForDeployment(server, project)).toMatchObject({
      status: "live",
      number: 3,
      image: { digest },
    });
    expect(await visit(server, project)).toEqual({ status: 200, text: "one" });
    expect(registry.seen.length).toBe(requests);

    const images = await server.api("GET", `/api/v1/projects/${project.id}/images`);
    expect((images.body as unknown as { digest: string }[]).map((each) => each.digest)).toEqual([
      newer,
      digest,
    ]);
    expect(await readdir(join(server.dataDir, "work/deployments"))).toEqual([]);
    const log = await server.api("GET", `/api/v1/deployments/${first.id}/build-log`);
    expect(JSON.stringify(log.body)).toContain(digest);
    for (const text of [server.log, JSON.stringify([log.body, images.body, first])])
      expect(text).not.toContain(account.password);
  },
);

test("the next server deploys the image after kill -9 behind the pull", { timeout: 300_000 }, async () => {
  const project = await openProject();
  registry.push("team/killed:1", saying("killed"));
  await server.dieAt("app_build.made", () =>
    server.api("POST", path(project, `${registry.host}/team/killed:1`)).catch(() => {}),
  );
  expect(await waitForDeployment(server, project)).toMatchObject({ status: "live", error: null });
  expect(await visit(server, project)).toEqual({ status: 200, text: "killed" });
});

test("a deployment whose image cannot be pulled fails with the reason", { timeout: 120_000 }, async () => {
  const project = await openProject();
  for (const [image, reason] of [
    [`${registry.host}/team/none:1`, "has no such image or tag"],
    ["169.254.169.254/latest/meta-data:1", "resolves to a private or internal address"],
    ["10.1.2.3:5000/team/app:1", "resolves to a private or internal address"],
  ] as const) {
    const failed = await deployImage(project, image);
    expect(failed.status).toBe("failed");
    expect(failed.error).toContain(reason);
    expect(failed.error).toContain("The image could not be pulled");
  }
});
