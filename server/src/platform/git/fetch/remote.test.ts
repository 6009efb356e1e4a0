/**
 * Checkouts of remote repositories, from servers on this host's loopback: a forge with its own TLS authority, and an
 * ssh server.
 */
import { existsSync } from "node:fs";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { createServer as createTlsServer } from "node:https";
import { createServer as createTcpServer, type AddressInfo } from "node:net";
import type { IncomingMessage, ServerResponse } from "node:http";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeEach, describe, expect, onTestFinished, test } from "vitest";
import { run, start } from "@kontor/runtime/exec.ts";
import { DomainError } from "#lib/errors.ts";
import { makePerson } from "../../../../test/factories.ts";
import { testDatabase } from "../../../../test/harness.ts";
import { readAnswer, services, startBackend } from "../hosting/backend.ts";
import { checkout, type CheckoutInput } from "./checkout.ts";
import { makeDeployKey } from "./deploy-key.ts";
import { commitFiles, commitIndex, gitApp, makeProject, temporary, userGit } from "../testing/git-app.ts";

const { db } = await testDatabase();
const { workspace } = await makePerson(db);
const repositories = await temporary();
const authority = await makeAuthority();

/** Behaviour of the forge, which tests change. */
const forge = {
  token: null as string | null,
  redirect: null as string | null,
  stalls: false,
  drips: false,
  requests: [] as string[],
};
beforeEach(() => {
  Object.assign(forge, { token: null, redirect: null, stalls: false, drips: false, requests: [] });
});
const server = createTlsServer(authority, (request, response) => void serve(request, response));
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
afterAll(() => {
  server.closeAllConnections();
  server.close();
});
const origin = `https://localhost:${(server.address() as AddressInfo).port}`;

/** The operator allowed the host by its name only, so loopback under any other name stays forbidden. */
const opened = { allowPrivateHosts: "localhost", gitCaFile: authority.file };
const app = await gitApp(db, opened);

async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
  forge.requests.push(request.url ?? "");
  if (forge.stalls) return;
  if (forge.drips) return drip(response);
  if (forge.redirect !== null) return void response.writeHead(302, { location: forge.redirect }).end();
  const [, name = "", rest = ""] = /^\/([\w-]+\.git)\/([\w/-]+)/.exec(request.url ?? "") ?? [];
  const sent = request.headers.authorization;
  const isIn = forge.token === null || sent === `Basic ${btoa(`oauth2:${forge.token}`)}`;
  if (!isIn) return void response.writeHead(401, { "www-authenticate": "Basic" }).end();
  if (!existsSync(join(repositories, name))) return void response.writeHead(404).end();
  const isAnnouncement = rest === "info/refs";
  const backend = startBackend({
    repositories,
    name,
    isAnnouncement,
    service: services[0],
    headers: {
      contentType: request.headers["content-type"],
      contentEncoding: request.headers["content-encoding"],
      gitProtocol: request.headers["git-protocol"] as string | undefined,
    },
    user: "test",
    settings: [],
    timeoutMs: 30_000,
  });
  const sentOn = pipeline(request, backend.stdin).catch(() => {});
  const answer = await readAnswer(backend);
  response.writeHead(answer.status, answer.headers);
  await pipeline(answer.body, response).catch(() => {});
  await sentOn;
  await backend.ended;
}

/** Sends a response that never ends. Git counts every byte as progress. */
function drip(response: ServerResponse): void {
  response.writeHead(200, { "content-type": "application/x-git-upload-pack-advertisement" });
  const timer = setInterval(() => response.write("0"), 20);
  response.once("close", () => clearInterval(timer));
}

/** Makes a self-signed certificate for the name localhost. */
async function makeAuthority() {
  const directory = await temporary();
  const [file, keyFile] = [join(directory, "ca.pem"), join(directory, "key.pem")];
  await run([
    "openssl",
    "req",
    "-x509",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:prime256v1",
    "-nodes",
    "-days",
    "2",
    "-subj",
    "/CN=localhost",
    "-addext",
    "subjectAltName=DNS:localhost,IP:127.0.0.1",
    "-keyout",
    keyFile,
    "-out",
    file,
  ]);
  return { file, cert: await readFile(file), key: await readFile(keyFile) };
}

let made = 0;
async function repository(files: Record<string, string> | null = { f: "one" }) {
  const name = `repository-${++made}.git`;
  const directory = join(repositories, name);
  await userGit("/", ["init", "--quiet", "--bare", "--initial-branch=main", directory]);
  const sha = files === null ? "" : await commitFiles(directory, "main", files);
  return { name, directory, sha, url: `${origin}/${name}` };
}

/** Makes a repository with a submodule at path `m`, at this commit and address. */
async function withSubmodule(url: string, sha: string) {
  const outer = await repository(null);
  const env = { GIT_INDEX_FILE: join(outer.directory, "modules") };
  const modules = `[submodule "m"]\n\tpath = m\n\turl = ${url}\n`;
  const { stdout } = await userGit(outer.directory, ["hash-object", "-w", "--stdin"], { stdin: modules });
  for (const entry of [`100644,${stdout.trim()},.gitmodules`, `160000,${sha},m`])
    await userGit(outer.directory, ["update-index", "--add", "--cacheinfo", entry], { env });
  await commitIndex(outer.directory, "main", env);
  return outer;
}

const input = (into: string, more: Partial<CheckoutInput> = {}): CheckoutInput => ({
  branch: "main",
  sha: null,
  into,
  log: () => {},
  signal: new AbortController().signal,
  ...more,
});
const refusal = (work: Promise<unknown>) =>
  work.then(
    () => "none",
    (error: unknown) => (error instanceof DomainError ? `${error.code}: ${error.detail}` : error),
  );

describe("fetches over https", () => {
  test("fetches a branch without its history, and a commit by its id even if a newer one exists", async () => {
    const { directory, url, sha } = await repository({ f: "one" });
    const newest = await commitFiles(directory, "main", { f: "two" });
    const project = await makeProject(app, workspace.id, { repo_url: url });
    const into = await temporary();
    expect(await checkout(app, project, input(into))).toMatchObject({ sha: newest, message: "work" });
    expect(await readFile(join(into, "f"), "utf8")).toBe("two");
    const before = await temporary();
    expect(await checkout(app, project, input(before, { sha }))).toMatchObject({ sha });
    expect(await readFile(join(before, "f"), "utf8")).toBe("one");
  });

  test("fetches a tag's commit, annotated or not, and names a missing tag in the error", async () => {
    const { directory, url, sha } = await repository({ f: "one" });
    await userGit(directory, ["tag", "--annotate", "--message", "release", "v1", sha]);
    await commitFiles(directory, "main", { f: "two" });
    const project = await makeProject(app, workspace.id, { repo_url: url });
    const into = await temporary();
    expect(await checkout(app, project, input(into, { tag: "v1" }))).toMatchObject({ sha });
    expect(await readFile(join(into, "f"), "utf8")).toBe("one");
    expect(await refusal(checkout(app, project, input(await temporary(), { tag: "v2" })))).toMatch(
      /^tag_not_found: The repository has no tag v2/,
    );
  });

  test("fetches the branch with its history if the host does not serve a commit by its id", async () => {
    const { directory, url, sha } = await repository({ f: "one" });
    for (const text of ["two", "three"]) await commitFiles(directory, "main", { f: text });
    const missing = "0123456789".repeat(4);
    const project = await makeProject(app, workspace.id, { repo_url: url });
    expect(await refusal(checkout(app, project, input(await temporary(), { sha: missing })))).toMatch(
      /^commit_not_found/,
    );
    expect(await checkout(app, project, input(await temporary(), { sha }))).toMatchObject({ sha });
  });

  test("returns different errors for an empty repository, a missing branch and a missing repository", async () => {
    const empty = await makeProject(app, workspace.id, { repo_url: (await repository(null)).url });
    expect(await refusal(checkout(app, empty, input(await temporary())))).toMatch(/^repository_empty/);
    const full = await makeProject(app, workspace.id, { repo_url: (await repository()).url });
    expect(await refusal(checkout(app, full, input(await temporary(), { branch: "other" })))).toMatch(
      /^branch_not_found/,
    );
    const none = await makeProject(app, workspace.id, { repo_url: `${origin}/none.git` });
    expect(await refusal(checkout(app, none, input(await temporary())))).toBe(
      "repository_unavailable: The repository can't be fetched: no repository exists at its address.",
    );
  });

  test("fetches a private repository with the project's token, and sends the token to no other host", async () => {
    forge.token = "token-canary";
    const { url } = await repository();
    const right = await makeProject(app, workspace.id, { repo_url: url, gitToken: forge.token });
    const lines: string[] = [];
    await checkout(app, right, input(await temporary(), { log: (text) => void lines.push(text) }));
    expect(lines.join("")).not.toContain("canary");
    const wrong = await makeProject(app, workspace.id, { repo_url: url, gitToken: "other-canary" });
    const error = await refusal(checkout(app, wrong, input(await temporary())));
    expect(error).toContain(
      "repository_unavailable: The repository can't be fetched: the forge requires a sign-in",
    );
    expect(error).not.toContain("canary");
  });

  test("refuses a certificate of an untrusted authority", async () => {
    const strict = await gitApp(db, { allowPrivateHosts: "localhost" });
    const project = await makeProject(strict, workspace.id, { repo_url: (await repository()).url });
    expect(await refusal(checkout(strict, project, input(await temporary())))).toContain(
      "no secure connection",
    );
    expect(forge.requests).toEqual([]);
  });

  test("does not connect to a private address under any name, unless the operator allowed that name", async () => {
    const { name } = await repository();
    const closed = await gitApp(db, { gitCaFile: authority.file });
    const { port } = server.address() as AddressInfo;
    for (const host of ["localhost", "127.0.0.1", "[::1]", "127.1", "0x7f000001", "[::ffff:127.0.0.1]"]) {
      const project = await makeProject(closed, workspace.id, {
        repo_url: `https://${host}:${port}/${name}`,
      });
      expect(await refusal(checkout(closed, project, input(await temporary())))).toMatch(
        /^repository_refused: .* private or internal address/,
      );
    }
    expect(forge.requests).toEqual([]);
  });

  test("follows no redirect to a private address, and none to plain http", async () => {
    const { name, url } = await repository();
    let visits = 0;
    const inner = createTcpServer((socket) => {
      visits += 1;
      socket.destroy();
    });
    await new Promise<void>((resolve) => inner.listen(0, "127.0.0.1", resolve));
    const { port } = inner.address() as AddressInfo;
    const project = await makeProject(app, workspace.id, { repo_url: url });
    for (const scheme of ["https", "http"]) {
      forge.redirect = `${scheme}://127.0.0.1:${port}/${name}/info/refs?service=git-upload-pack`;
      expect(await refusal(checkout(app, project, input(await temporary())))).toMatch(/^repository_/);
    }
    expect(visits).toBe(0);
    inner.close();
  });

  test("fetches submodules at their commits, and resolves a relative address", async () => {
    const inner = await repository({ deep: "inside" });
    const outer = await withSubmodule(`../${inner.name}`, inner.sha);
    const project = await makeProject(app, workspace.id, { repo_url: outer.url });
    const into = await temporary();
    await checkout(app, project, input(into));
    expect(await readFile(join(into, "m", "deep"), "utf8")).toBe("inside");
    expect(existsSync(join(into, "m", ".git"))).toBe(false);
  });

  test("refuses a submodule at a private address, a file path or a program", async () => {
    const { sha, directory, name } = await repository();
    const { port } = server.address() as AddressInfo;
    for (const url of [
      `https://127.0.0.1:${port}/${name}`,
      `file://${directory}`,
      directory,
      "ext::sh -c id",
    ]) {
      const project = await makeProject(app, workspace.id, { repo_url: (await withSubmodule(url, sha)).url });
      expect(await refusal(checkout(app, project, input(await temporary())))).toMatch(/^repository_refused/);
    }
  });

  test("stops a fetch above the size limit of a checkout", async () => {
    const small = await gitApp(db, { ...opened, gitCheckoutMaxMb: "1" });
    const noise = Array.from({ length: 4 }, () => crypto.getRandomValues(new Uint8Array(60_000)));
    const text = noise.map((bytes) => Buffer.from(bytes).toString("base64")).join("\n");
    const files = Object.fromEntries(Array.from({ length: 8 }, (_, n) => [`f${n}`, `${n}${text.slice(n)}`]));
    for (const [path, one] of Object.entries(files))
      files[path] =
        one +
        Buffer.from(crypto.getRandomValues(new Uint8Array(65_000)))
          .toString("hex")
          .repeat(2);
    const project = await makeProject(small, workspace.id, { repo_url: (await repository(files)).url });
    expect(await refusal(checkout(small, project, input(await temporary())))).toMatch(
      /^repository_too_large/,
    );
  });

  test("aborts at the checkout's deadline when a forge sends single bytes slowly", async () => {
    forge.drips = true;
    const hasty = { ...app, config: { ...app.config, gitTimeoutMinutes: 1 / 30 } };
    const project = await makeProject(app, workspace.id, { repo_url: (await repository()).url });
    const refused = await refusal(checkout(hasty, project, input(await temporary())));
    expect(refused).toMatch(/^repository_unavailable.*the fetch took too long/s);
    expect(forge.requests).toHaveLength(1);
  });

  test("aborts a fetch at once when its signal aborts while the forge does not respond", async () => {
    forge.stalls = true;
    const project = await makeProject(app, workspace.id, { repo_url: (await repository()).url });
    const cancel = new AbortController();
    const work = checkout(app, project, input(await temporary(), { signal: cancel.signal }));
    const outcome = work.catch((error: Error) => error.message);
    await expect.poll(() => forge.requests.length, { timeout: 10_000 }).toBe(1);
    cancel.abort(new Error("cancelled"));
    expect(await outcome).toBe("cancelled");
  });
});

const sshd = "/usr/sbin/sshd";

describe.skipIf(!existsSync(sshd) || process.getuid?.() !== 0)("fetches over ssh", () => {
  /** Starts an ssh server that accepts only this key. */
  async function sshServer(authorized: string, port?: number) {
    const directory = await temporary();
    const [hostKey, keys] = [join(directory, "host"), join(directory, "authorized")];
    await run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", hostKey]);
    await writeFile(keys, `${authorized}\n`, { mode: 0o600 });
    await mkdir("/run/sshd", { recursive: true });
    const at = port ?? (await freePort());
    const settings = {
      ListenAddress: `127.0.0.1:${at}`,
      HostKey: hostKey,
      AuthorizedKeysFile: keys,
      StrictModes: "no",
      UsePAM: "no",
      PasswordAuthentication: "no",
      PermitRootLogin: "prohibit-password",
      PidFile: "none",
    };
    const options = Object.entries(settings).flatMap(([name, value]) => ["-o", `${name}=${value}`]);
    const daemon = start([sshd, "-D", "-e", "-f", "/dev/null", ...options], {
      env: { PATH: "/usr/bin:/bin" },
      cwd: "/",
      timeoutMs: 120_000,
    });
    const stop = async () => {
      daemon.end();
      await daemon.ended;
    };
    onTestFinished(stop);
    await answers(at);
    return { port: at, stop, hostKey: (await readFile(`${hostKey}.pub`, "utf8")).trim() };
  }

  async function freePort(): Promise<number> {
    const one = createTcpServer();
    await new Promise<void>((resolve) => one.listen(0, "127.0.0.1", resolve));
    const { port } = one.address() as AddressInfo;
    await new Promise((resolve) => one.close(resolve));
    return port;
  }

  async function answers(port: number): Promise<void> {
    for (;;) {
      const code = await run(["ssh-keyscan", "-T", "5", "-p", String(port), "127.0.0.1"], {
        okCodes: [0, 1],
        timeoutMs: 10_000,
      });
      if (code.stdout.includes("ssh-ed25519")) return;
      await sleep(50);
    }
  }

  test("signs in with the deploy key, trusts a host's first key, and refuses a changed one", async () => {
    const { publicKey, privateKey } = await makeDeployKey();
    const first = await sshServer(publicKey);
    const { directory, sha } = await repository({ f: "by ssh" });
    const url = `ssh://root@localhost:${first.port}${directory}`;
    const { id } = await makeProject(app, workspace.id, { repo_url: url, deployKey: privateKey });
    const project = () =>
      db.selectFrom("projects").selectAll().where("id", "=", id).executeTakeFirstOrThrow();
    const into = await temporary();
    expect(await checkout(app, await project(), input(into))).toMatchObject({ sha });
    expect(await readFile(join(into, "f"), "utf8")).toBe("by ssh");
    const [type, key] = first.hostKey.split(" ");
    expect((await project()).known_hosts).toContain(`[localhost]:${first.port} ${type} ${key}`);
    await checkout(app, await project(), input(await temporary()));
    await first.stop();
    await sshServer(publicKey, first.port);
    expect(await refusal(checkout(app, await project(), input(await temporary())))).toMatch(
      /^host_key_changed/,
    );
    await db.updateTable("projects").set({ known_hosts: null }).where("id", "=", id).execute();
    expect(await checkout(app, await project(), input(await temporary()))).toMatchObject({ sha });
  });

  test("names a deploy key that the host rejects, and refuses a host missing from the operator's list", async () => {
    const { publicKey, privateKey } = await makeDeployKey();
    const { port, hostKey } = await sshServer(publicKey);
    const { directory, sha } = await repository();
    const repo_url = `ssh://root@localhost:${port}${directory}`;
    const other = (await makeDeployKey()).privateKey;
    const wrong = await makeProject(app, workspace.id, { repo_url, deployKey: other });
    expect(await refusal(checkout(app, wrong, input(await temporary())))).toContain("project's deploy key");
    const list = join(await temporary(), "known hosts");
    await writeFile(list, "");
    const strict = { ...app, config: { ...app.config, gitKnownHosts: list } };
    const project = await makeProject(app, workspace.id, { repo_url, deployKey: privateKey });
    expect(await refusal(checkout(strict, project, input(await temporary())))).toMatch(
      /^repository_refused: .*host key/,
    );
    await writeFile(list, `[localhost]:${port} ${hostKey}\n`);
    expect(await checkout(strict, project, input(await temporary()))).toMatchObject({ sha });
  });

  test("does not connect by ssh to a private address, unless the operator allowed it", async () => {
    const closed = await gitApp(db);
    for (const repo_url of ["ssh://git@127.0.0.1:1/x", "git@localhost:x/y", "ssh://git@[::1]/x"]) {
      const project = await makeProject(closed, workspace.id, { repo_url });
      expect(await refusal(checkout(closed, project, input(await temporary())))).toMatch(
        /^repository_refused: .* private or internal address/,
      );
    }
  });
});
