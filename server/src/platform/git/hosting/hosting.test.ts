/** Hosted repositories, accessed by an ordinary git client over HTTP. */
import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeEach, expect, onTestFinished, test } from "vitest";
import { findActor, findActors, clearActorCache } from "#accounts/find-actor.ts";
import { createHttpServer } from "#http/server.ts";
import { makePerson, makeTeam, makeToken } from "../../../../test/factories.ts";
import { testDatabase } from "../../../../test/harness.ts";
import { repositoryDirectory } from "../git.ts";
import { gitSite } from "./hosting-routes.ts";
import { type Deployments, type PushedBranch, Pushes } from "./push.ts";
import type { ProjectRow } from "../store.ts";
import { commitFiles, gitApp, makeProject, temporary, userGit } from "../testing/git-app.ts";

const { db } = await testDatabase();
const app = await gitApp(db, {
  appsDomain: "apps.test",
  gitPushMaxMb: "2",
  gitRepositoryMaxMb: "4",
  rateLimits: "off",
});
const { user, workspace } = await makePerson(db, { workspace: { plan: "team" } });
const stranger = await makePerson(db);
const token = (await makeToken(db, user.id)).plaintext;

/** Fake deployments, which a test controls. */
const deployments = {
  pushes: [] as PushedBranch[],
  events: [] as ({ step: string; text: string } | { status: string; error: string | null })[],
  /** Promise that is awaited before the last event. */
  gate: Promise.resolve() as Promise<void>,
  /** Number of deployments that are being followed. */
  followed: 0,
  isServed: false,
};
const played: Deployments = {
  pushed: async (push) => {
    deployments.pushes.push(push);
    return [{ id: `deployment-${deployments.pushes.length}`, host_label: "shop" }];
  },
  isServed: async () => deployments.isServed,
  async *follow(_id, signal) {
    deployments.followed += 1;
    try {
      for (const one of deployments.events.slice(0, -1)) yield one;
      const gone = new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
      await Promise.race([deployments.gate, gone]);
      yield* deployments.events.slice(-1);
    } finally {
      deployments.followed -= 1;
    }
  },
};
const pushes = new Pushes(app, played);
const server = await createHttpServer(
  app,
  { platform: [], sandbox: [], agent: [] },
  {
    findActor: (credential) => findActor(app, credential),
    findActors: (credentials) => findActors(app, credentials),
    raw: [gitSite(app, pushes)],
  },
);
const port = await server.listen({ host: "127.0.0.1", port: 0 });
afterAll(() => server.close());

beforeEach(() => {
  deployments.pushes = [];
  deployments.events = [{ status: "live", error: null }];
  deployments.gate = Promise.resolve();
});

const urlOf = (project: Pick<ProjectRow, "name">, password: string | null = token) =>
  `http://${password === null ? "" : `any:${password}@`}127.0.0.1:${port}/git/${project.name}.git`;

/** Creates a user's local repository with a commit on `main`, and returns its directory. */
async function work(files: Record<string, string> = { "index.html": "one" }): Promise<string> {
  const directory = await temporary();
  await userGit(directory, ["init", "--quiet", "--initial-branch=main"]);
  await commitFiles(directory, "main", files);
  return directory;
}

const push = (directory: string, project: Pick<ProjectRow, "name">, ...refs: string[]) =>
  userGit(directory, ["push", urlOf(project), ...(refs.length === 0 ? ["main"] : refs)], {
    okCodes: [0, 1, 128],
  });
const headOf = async (directory: string, ref = "main") =>
  (await userGit(directory, ["rev-parse", ref])).stdout.trim();

const deliveryOf = async ({ id }: Pick<ProjectRow, "id">) =>
  (await db.selectFrom("projects").select("hook_last_delivery").where("id", "=", id).executeTakeFirst())
    ?.hook_last_delivery;

test("stores a push, deploys its commit and streams the log to the end; a clone contains the commit", async () => {
  const project = await makeProject(app, workspace.id);
  deployments.events = [
    { status: "building", error: null },
    { step: "clone", text: "Fetching\n" },
    { step: "build", text: "step 1\nstep \u001b[2J2\n" },
    { status: "live", error: null },
  ];
  const directory = await work();
  const { code, stderr } = await push(directory, project);
  expect(code, stderr).toBe(0);
  const lines = [...stderr.matchAll(/^remote: (.*?) *$/gm)].map(([, line]) => line);
  expect(lines).toEqual([
    "Deploying to https://shop.apps.test",
    "-----> clone",
    "Fetching",
    "-----> build",
    "step 1",
    "step 2",
    "-----> live at https://shop.apps.test",
  ]);
  const sha = await headOf(directory);
  expect(deployments.pushes).toMatchObject([
    { projectId: project.id, branch: "main", sha, actor: { kind: "api_token", userId: user.id } },
  ]);
  expect(await deliveryOf(project)).toEqual({
    at: app.clock.now().toISOString(),
    event: "push",
    status: 202,
    detail: "A deployment of main is queued.",
  });
  const copy = await temporary();
  await userGit(copy, ["clone", "--quiet", urlOf(project), "copy"]);
  expect(await readFile(join(copy, "copy", "index.html"), "utf8")).toBe("one");
  const activity = await db
    .selectFrom("activity")
    .select(["action", "detail"])
    .where("target_id", "=", project.id)
    .execute();
  expect(activity).toEqual([{ action: "repository.pushed", detail: { branch: "main", sha } }]);
});

test("reports a push as successful when its deployment fails, and prints the cause", async () => {
  const project = await makeProject(app, workspace.id);
  deployments.events = [{ status: "failed", error: "the build ended with 1" }];
  const { code, stderr } = await push(await work(), project);
  expect(code).toBe(0);
  expect(stderr).toContain("failed: the build ended with 1");
  expect(stderr).toContain("Nothing is live yet.");
});

test("prints the cause of a failed deployment once, and that the previous version stays live", async () => {
  const project = await makeProject(app, workspace.id);
  const words = "npm error missing script: build";
  deployments.isServed = true;
  deployments.events = [
    { step: "build", text: `RUN npm run build\n${words}\n` },
    { status: "failed", error: `The build failed: RUN npm run build exited with 1\nLast output:\n${words}` },
  ];
  const { stderr } = await push(await work(), project);
  deployments.isServed = false;
  expect(stderr.split(words)).toHaveLength(2);
  expect(stderr).toContain("-----> failed: The build failed: RUN npm run build exited with 1");
  expect(stderr).toContain("The previous version stays live.");
  expect(stderr).not.toContain("Last output");
});

test("prints an app's last output after a failed deployment if its log lacks that output", async () => {
  const project = await makeProject(app, workspace.id);
  const error = "The app did not become healthy: the app ended with exit code 1. Last output:\nno database";
  deployments.events = [
    { step: "health", text: "Waiting for the app.\n" },
    { status: "failed", error },
  ];
  expect((await push(await work(), project)).stderr).toContain("no database");
});

test("prints that a deployment is queued while its log is silent", async () => {
  const project = await makeProject(app, workspace.id);
  const turn = Promise.withResolvers<void>();
  deployments.gate = turn.promise;
  deployments.events = [{ status: "live", error: null }];
  const pushing = push(await work(), project);
  await expect.poll(() => deployments.followed).toBe(1);
  // The line is printed after a moment of silence. The deployment ends after the line.
  setTimeout(turn.resolve, 3_000);
  const { stderr } = await pushing;
  deployments.gate = Promise.resolve();
  expect(stderr).toMatch(/queued: waiting for its turn[\s\S]*live at/);
});

test("stores and deploys a push whose client disconnects during the deployment", async () => {
  const project = await makeProject(app, workspace.id);
  const directory = await work();
  deployments.gate = new Promise(() => {});
  const gone = new AbortController();
  const pushing = userGit(directory, ["push", urlOf(project), "main"], { signal: gone.signal });
  await expect.poll(() => deployments.pushes.length).toBe(1);
  gone.abort();
  await expect(pushing).rejects.toThrow("was aborted");
  // A disconnected client follows no deployment.
  await expect.poll(() => deployments.followed).toBe(0);
  const { stdout } = await userGit(directory, ["ls-remote", urlOf(project)]);
  expect(stdout).toContain(await headOf(directory));
  expect((await push(directory, project)).stderr).toContain("Everything up-to-date");
});

test("ends the stream of a push's build log when its token is revoked", { timeout: 60_000 }, async () => {
  const project = await makeProject(app, workspace.id);
  const { plaintext, row } = await makeToken(db, user.id);
  deployments.gate = new Promise(() => {});
  const pushing = userGit(await work(), ["push", urlOf(project, plaintext), "main"], {
    okCodes: [0, 1, 128],
  });
  await expect.poll(() => deployments.followed).toBe(1);
  await db.updateTable("api_tokens").set({ revoked_at: new Date() }).where("id", "=", row.id).execute();
  expect((await pushing).code).not.toBe(0);
  await expect.poll(() => deployments.followed).toBe(0);
});

test("deploys only a branch that an environment follows, and prints the fix for any other branch", async () => {
  const project = await makeProject(app, workspace.id);
  const directory = await work();
  const { code, stderr } = await push(directory, project, "main:master");
  expect([code, deployments.pushes]).toEqual([0, []]);
  expect(stderr).toContain("environments of this project follow main");
  expect(stderr).toContain("master:main");
});

test("stores a push without a deployment while auto-deploy is off, and prints the reason", async () => {
  const project = await makeProject(app, workspace.id, { auto_deploy: false });
  const { code, stderr } = await push(await work(), project);
  expect([code, deployments.pushes]).toEqual([0, []]);
  expect(stderr).toContain("auto-deploy is off");
  expect(await deliveryOf(project)).toMatchObject({ detail: expect.stringContaining("auto-deploy is off") });
});

test("deploys nothing for a push without new commits, and accepts a rewritten history and a deleted branch", async () => {
  const project = await makeProject(app, workspace.id);
  const directory = await work();
  await push(directory, project);
  expect((await push(directory, project)).stderr).toContain("Everything up-to-date");
  const other = await work({ "index.html": "rewritten" });
  expect((await push(other, project, "+main")).code).toBe(0);
  expect(deployments.pushes.map(({ sha }) => sha)).toEqual([await headOf(directory), await headOf(other)]);
  expect((await push(directory, project, ":main")).code).toBe(0);
  expect((await userGit(directory, ["ls-remote", urlOf(project)])).stdout).toBe("");
  // A commit deploys again when its branch was deleted in between.
  await push(other, project);
  expect(deployments.pushes).toHaveLength(3);
});

test("deploys at the next start, once, the commits of a push during which the server died", async () => {
  const project = await makeProject(app, workspace.id);
  const repository = repositoryDirectory(app, project.id);
  const sha = await commitFiles(repository, "main", { f: "x" });
  await mkdir(join(repository, "objects", "tmp_objdir-incoming-x", "pack"), { recursive: true });
  const next = new Pushes(app, played);
  await next.catchUp();
  await next.catchUp();
  expect(deployments.pushes.filter(({ projectId }) => projectId === project.id)).toMatchObject([
    { sha, actor: { kind: "system" } },
  ]);
  expect((await readdir(join(repository, "objects"))).filter((name) => name.startsWith("tmp_"))).toEqual([]);
});

test("requires a token with the right scope, and returns 404 for another user's project", async () => {
  const project = await makeProject(app, workspace.id);
  const foreign = (await makeToken(db, stranger.user.id)).plaintext;
  const reading = (await makeToken(db, user.id, { scopes: ["platform:read"] })).plaintext;
  const sandboxes = (await makeToken(db, user.id, { scopes: ["sandboxes:write"] })).plaintext;
  const info = async (name: string, password: string | null, service = "git-upload-pack") => {
    const response = await fetch(`http://127.0.0.1:${port}/git/${name}.git/info/refs?service=${service}`, {
      headers: password === null ? {} : { authorization: `Basic ${btoa(`any:${password}`)}` },
    });
    return [response.status, await response.text()] as const;
  };
  expect((await info(project.name, null))[0]).toBe(401);
  expect((await info("no-such", null))[0]).toBe(401);
  expect((await info(project.name, "svc_wrong"))[0]).toBe(401);
  expect((await info(project.name, foreign))[0]).toBe(404);
  expect(await info(project.name, foreign)).toEqual(await info("no-such", token));
  expect((await info(project.name, reading))[0]).toBe(200);
  expect((await info(project.name, reading, "git-receive-pack"))[0]).toBe(403);
  expect((await info(project.name, sandboxes))[0]).toBe(403);
  const elsewhere = await makeProject(app, workspace.id, { repo_url: "https://forge.test/a/b" });
  expect(await info(elsewhere.name, token)).toEqual([404, expect.stringContaining("https://forge.test/a/b")]);
  const denied = await userGit(await work(), ["push", urlOf(project, reading), "main"], { okCodes: [128] });
  expect(denied.stderr).toContain("platform:write");
});

test("allows a fetch and refuses a push while the account is suspended", async () => {
  const person = await makePerson(db, { workspace: { suspended_at: new Date() } });
  const project = await makeProject(app, person.workspace.id);
  const plaintextToken = (await makeToken(db, person.user.id)).plaintext;
  clearActorCache(app);
  const directory = await work();
  const { stderr } = await userGit(directory, ["push", urlOf(project, plaintextToken), "main"], {
    okCodes: [128],
  });
  expect(stderr).toContain("suspended");
  expect((await userGit(directory, ["ls-remote", urlOf(project, plaintextToken)])).code).toBe(0);
});

test("allows a fetch and refuses a push by a viewer of the team", async () => {
  const viewer = await makePerson(db);
  const team = await makeTeam(db, { [user.id]: "owner", [viewer.user.id]: "viewer" });
  const project = await makeProject(app, team.id);
  const plaintextToken = (await makeToken(db, viewer.user.id)).plaintext;
  const bound = (await makeToken(db, viewer.user.id, { workspaceId: team.id })).plaintext;
  const directory = await work();
  for (const secret of [plaintextToken, bound]) {
    const push = ["push", urlOf(project, secret), "main"];
    expect((await userGit(directory, push, { okCodes: [128] })).stderr).toContain("A viewer can only read");
    const { code, stdout } = await userGit(directory, ["ls-remote", urlOf(project, secret)]);
    expect([code, stdout]).toEqual([0, ""]);
  }
});

test("limits the rate of requests by the plan of the token's owner", async () => {
  const limited = await gitApp(db, { rateLimitPlatformTeam: "2" });
  const site = gitSite(limited, pushes);
  const other = await createHttpServer(
    limited,
    { platform: [], sandbox: [], agent: [] },
    { findActor: (credential) => findActor(app, credential), raw: [site] },
  );
  onTestFinished(() => other.close());
  const at = await other.listen({ host: "127.0.0.1", port: 0 });
  const statuses = [];
  for (let n = 0; n < 3; n += 1) {
    const { status } = await fetch(`http://127.0.0.1:${at}/git/none.git/info/refs?service=git-upload-pack`, {
      headers: { authorization: `Bearer ${token}` },
    });
    statuses.push(status);
  }
  expect(statuses).toEqual([404, 404, 429]);
});

test("serves and accepts only branches and tags", async () => {
  const project = await makeProject(app, workspace.id);
  const directory = await work();
  await userGit(directory, ["tag", "v1", "main"]);
  for (const ref of ["refs/kontor/x", "refs/notes/x", "refs/replace/x", "refs/pull/1/head"]) {
    expect((await push(directory, project, `main:${ref}`)).stderr).toContain("deny updating a hidden ref");
  }
  expect((await push(directory, project, "v1")).code).toBe(0);
  expect((await userGit(directory, ["ls-remote", urlOf(project)])).stdout).toMatch(/^\S+\trefs\/tags\/v1\n$/);
});

test("refuses malformed and malicious objects", async () => {
  const project = await makeProject(app, workspace.id);
  const directory = await work();
  const { stdout: blob } = await userGit(directory, ["hash-object", "-w", "--stdin"], { stdin: "x" });
  const tree = Buffer.concat([Buffer.from("100644 .git\0"), Buffer.from(blob.trim(), "hex")]);
  await writeFile(join(directory, "tree"), tree);
  const made = await userGit(directory, ["hash-object", "-t", "tree", "-w", "--literally", "tree"]);
  const commit = await userGit(directory, ["commit-tree", made.stdout.trim(), "-m", "evil"]);
  await userGit(directory, ["update-ref", "refs/heads/evil", commit.stdout.trim()]);
  const { code, stderr } = await push(directory, project, "evil:main");
  expect([code, deployments.pushes]).toEqual([1, []]);
  expect(stderr).toContain("hasDotgit");
});

test("refuses a push above the size limit with the reason, and keeps none of its objects", async () => {
  const project = await makeProject(app, workspace.id);
  const directory = await temporary();
  await userGit(directory, ["init", "--quiet", "--initial-branch=main"]);
  await commitFiles(directory, "main", { big: randomBytes(2.5 * 1024 ** 2).toString("base64") });
  const { code, stderr } = await push(directory, project);
  expect(code).not.toBe(0);
  expect(stderr).toContain("exceeds maximum allowed size");
  const objects = await readdir(join(repositoryDirectory(app, project.id), "objects"), { recursive: true });
  expect(objects.filter((name) => /pack-|tmp_|incoming/.test(name))).toEqual([]);
});

/** Request of a push of a large object: the head, and the bytes that follow. */
function largePush(project: Pick<ProjectRow, "name">) {
  const head = [
    `POST /git/${project.name}.git/git-receive-pack HTTP/1.1`,
    "host: localhost",
    `authorization: Basic ${btoa(`x:${token}`)}`,
    "content-type: application/x-git-receive-pack-request",
    "content-length: 1000000",
  ];
  const command = `${"0".repeat(40)} ${"1".repeat(40)} refs/heads/main\0 report-status side-band-64k`;
  const line = (command.length + 4).toString(16).padStart(4, "0") + command;
  // A blob of 2 MiB, of which only the first block is sent: 65,535 bytes, stored (RFC 1951).
  const blob = Buffer.from([0xb0, 0x80, 0x80, 0x08, 0x78, 0x01, 0x00, 0xff, 0xff, 0x00, 0x00]);
  const pack = Buffer.concat([Buffer.from("PACK\0\0\0\u0002\0\0\0\u0001"), blob, Buffer.alloc(65_535)]);
  return { head: `${head.join("\r\n")}\r\n\r\n`, body: Buffer.concat([Buffer.from(`${line}0000`), pack]) };
}

/** Returns the pushes that git is receiving. Their objects are in quarantine until they are complete. */
async function incoming(projects: readonly Pick<ProjectRow, "id">[]): Promise<number> {
  const found = await Promise.all(
    projects.map(async ({ id }) => readdir(join(repositoryDirectory(app, id), "objects"))),
  );
  return found.flat().filter((name) => name.includes("incoming")).length;
}

const patiently = { timeout: 20_000 };

test("keeps neither objects nor processes of a push whose client disconnects before the end", async () => {
  const project = await makeProject(app, workspace.id);
  const socket = connect(port, "127.0.0.1");
  const { head, body } = largePush(project);
  socket.write(head);
  socket.write(body);
  await expect.poll(() => incoming([project]), patiently).toBe(1);
  socket.destroy();
  await expect.poll(() => incoming([project]), patiently).toBe(0);
  expect(deployments.pushes).toEqual([]);
});

/** Starts a further server with `gitConcurrency` slots. */
async function serve(overrides: { gitConcurrency: string }, options: { rateWindowMs?: number } = {}) {
  const config = { ...app.config, gitConcurrency: Number(overrides.gitConcurrency) };
  const other = await createHttpServer(
    { ...app, config },
    { platform: [], sandbox: [], agent: [] },
    { findActor: async () => undefined, raw: [gitSite({ ...app, config }, pushes, options)] },
  );
  onTestFinished(() => other.close());
  const at = await other.listen({ host: "127.0.0.1", port: 0 });
  const open = (...written: (string | Buffer)[]) => {
    const socket = connect(at, "127.0.0.1").on("error", () => {});
    onTestFinished(() => void socket.destroy());
    for (const bytes of written) socket.write(bytes);
    return socket;
  };
  const info = async (project: Pick<ProjectRow, "name">, password: string) => {
    const response = await fetch(
      `http://127.0.0.1:${at}/git/${project.name}.git/info/refs?service=git-upload-pack`,
      { headers: { authorization: `Bearer ${password}` } },
    );
    await response.arrayBuffer();
    return response.status;
  };
  return { open, info };
}

test("serves other payers while one person's workspaces hold their whole share of slots", async () => {
  const { open, info } = await serve({ gitConcurrency: "4" });
  const team = await makeTeam(db, { [user.id]: "owner" });
  const mine = await Promise.all(
    [workspace.id, workspace.id, team.id, team.id].map((id) => makeProject(app, id)),
  );
  const theirs = await makeProject(app, stranger.workspace.id);
  const foreign = (await makeToken(db, stranger.user.id)).plaintext;
  clearActorCache(app);
  for (const project of mine) {
    const { head, body } = largePush(project);
    open(head, body);
  }
  await expect.poll(() => incoming(mine), patiently).toBe(2);
  expect(await info(theirs, foreign)).toBe(200);
  expect(await incoming(mine)).toBe(2);
});

test("takes no slot for a push before its body begins", async () => {
  const { open, info } = await serve({ gitConcurrency: "1" });
  const project = await makeProject(app, workspace.id);
  const { head, body } = largePush(project);
  const begun = open(head, body.subarray(0, 4));
  await new Promise((resolve) => begun.once("connect", resolve));
  // The server reads the head of the push before that of the next request.
  expect(await info(project, token)).toBe(200);
  begun.write(body.subarray(4));
  await expect.poll(() => incoming([project]), patiently).toBe(1);
});

test("ends a push below the minimum rate with a 408 response, and frees its slot", async () => {
  const { open, info } = await serve({ gitConcurrency: "1" }, { rateWindowMs: 500 });
  const project = await makeProject(app, workspace.id);
  const { head, body } = largePush(project);
  const slow = open(head, body);
  let answer = "";
  slow.on("data", (piece) => (answer += piece.toString()));
  await new Promise((resolve) => slow.once("close", resolve));
  expect(answer).toMatch(/^HTTP\/1\.1 408 .*moved fewer than 1024 bytes a second/s);
  expect(await info(project, token)).toBe(200);
  await expect.poll(() => incoming([project]), patiently).toBe(0);
});

test("ignores hooks and settings in a repository's directory", async () => {
  const project = await makeProject(app, workspace.id);
  const repository = repositoryDirectory(app, project.id);
  const trace = join(await temporary(), "ran");
  await mkdir(join(repository, "hooks"), { recursive: true });
  for (const hook of ["pre-receive", "update", "post-receive", "post-update", "reference-transaction"])
    await writeFile(join(repository, "hooks", hook), `#!/bin/sh\ntouch ${trace}\n`, { mode: 0o755 });
  expect((await push(await work(), project)).code).toBe(0);
  await expect(readFile(trace)).rejects.toThrow("ENOENT");
});

test.each([
  ["GET", "/git/../../etc/passwd"],
  ["GET", "/git/shop.git/HEAD"],
  ["GET", "/git/shop.git/objects/info/packs"],
  ["GET", "/git/shop.git/info/refs"],
  ["GET", "/git/shop.git/info/refs?service=git-upload-archive"],
  ["POST", "/git/shop.git/git-upload-archive"],
  ["GET", "/git/a%2f..%2fb.git/info/refs?service=git-upload-pack"],
])("refuses %s %s as a repository's address", async (method, path) => {
  const answer = await new Promise<string>((resolve, reject) => {
    const socket = connect(port, "127.0.0.1");
    let text = "";
    socket.on("data", (piece) => (text += piece.toString()));
    socket.on("end", () => resolve(text)).on("error", reject);
    socket.write(
      `${method} ${path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer ${token}\r\n\r\n`,
    );
  });
  expect(answer).toMatch(/^HTTP\/1\.1 404 /);
});
