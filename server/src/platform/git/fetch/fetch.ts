/**
 * Fetches one commit from a remote repository into the checkout's own repository. The fetch is shallow, and bounded in
 * bytes and time. Each connection goes to a vetted address (`proxy-gate.ts`, `ssh.ts`). For a refusal by the remote,
 * the project's owner gets our explanation, or the last line of git's output.
 */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { App } from "#app.ts";
import { type OpenedHosts, parseOpenedHosts } from "#lib/network/addresses.ts";
import { allowedAddresses } from "#lib/network/allowed-addresses.ts";
import {
  branchNotFound,
  commitNotFound,
  hostKeyChanged,
  repositoryEmpty,
  repositoryRefused,
  repositoryTooLarge,
  repositoryUnavailable,
  tagNotFound,
} from "../errors.ts";
import { Gate } from "./proxy-gate.ts";
import { git, type GitSettings, isLate, mebibyte } from "../git.ts";
import type { HttpRemote, Remote, SshRemote } from "./remotes.ts";
import { openGitSecret } from "../git-secrets.ts";
import { prepareSsh, type Ssh } from "./ssh.ts";
import { type ProjectRow, saveKnownHosts } from "../store.ts";

type Needs = Pick<App, "config" | "db" | "secrets">;

export interface FetchContext {
  project: ProjectRow;
  /** Scratch directory of this checkout, for files of a fetch outside the repository. */
  scratch: string;
  deadline: { timeoutMs: () => number };
  signal: AbortSignal;
}

/** The commit to fetch: by id, by tag, or the newest commit of a branch. */
export type CommitRef = { sha: string } | { tag: string } | { branch: string };

/** Ref that holds the fetched commit in the checkout's own repository. */
const wantedRef = "refs/kontor/wanted";
/** Depths at which to fetch the branch if the server refuses to serve the commit by its id. */
const depths = [50, 1000, 20_000];
/** Allowance for the forge's list of refs, added to the limit of the fetch. */
const listingBytes = 64 * mebibyte;
const anyCode = Array.from({ length: 256 }, (_, code) => code);

export class Fetcher {
  readonly #app: Needs;
  readonly #context: FetchContext;
  readonly #opened: OpenedHosts;
  readonly #gates = new Map<HttpRemote["kind"], Gate>();
  #sshCount = 0;
  #knownHosts: string;

  constructor(app: Needs, context: FetchContext) {
    this.#app = app;
    this.#context = context;
    this.#opened = parseOpenedHosts(app.config.allowPrivateHosts);
    this.#knownHosts = context.project.known_hosts ?? "";
  }

  async close(): Promise<void> {
    await Promise.all([...this.#gates.values()].map((gate) => gate.close()));
  }

  /** Returns the commit's id. `branch` is searched for the commit if the server refuses to serve it by its id. */
  async fetch(gitDir: string, remote: Remote, wanted: CommitRef, branch: string | null): Promise<string> {
    const call = await this.#route(remote, gitDir);
    const failure = await call.fetch(1, refOf(wanted));
    if (failure === undefined) return this.#resolve(gitDir, wanted);
    // A refusal by the gate or the host reveals nothing about the repository's content.
    const explained = call.explain(failure);
    if (explained) throw explained;
    const heads = await call.heads();
    if (heads === undefined) throw repositoryUnavailable(lastLine(failure));
    if (heads.length === 0) throw repositoryEmpty();
    if ("branch" in wanted) {
      if (!heads.includes(wanted.branch)) throw branchNotFound(wanted.branch);
      throw repositoryUnavailable(lastLine(failure));
    }
    if ("tag" in wanted) {
      if (/couldn't find remote ref/.test(failure)) throw tagNotFound(wanted.tag);
      throw repositoryUnavailable(lastLine(failure));
    }
    return this.#deepen(gitDir, call, wanted.sha, branch !== null && heads.includes(branch) ? branch : "*");
  }

  async #deepen(gitDir: string, call: Call, sha: string, branch: string): Promise<string> {
    for (const depth of depths) {
      const failure = await call.fetch(depth, `refs/heads/${branch}`);
      if (failure !== undefined) throw call.explain(failure) ?? repositoryUnavailable(lastLine(failure));
      const found = await git(["cat-file", "-e", `${sha}^{commit}`], {
        cwd: gitDir,
        timeoutMs: this.#context.deadline.timeoutMs(),
        okCodes: anyCode,
        signal: this.#context.signal,
      });
      if (found.code === 0) return sha;
    }
    throw commitNotFound(sha);
  }

  async #resolve(gitDir: string, wanted: CommitRef): Promise<string> {
    const args = ["rev-parse", "--verify", "--quiet", "--end-of-options", `${wantedRef}^{commit}`];
    const { signal, deadline } = this.#context;
    const call = { cwd: gitDir, timeoutMs: deadline.timeoutMs(), okCodes: anyCode, signal };
    const { code, stdout, stderr } = await git(args, call);
    if (code === 0) return stdout.trim();
    // A tag may point to a file.
    if ("tag" in wanted) throw tagNotFound(wanted.tag);
    throw repositoryUnavailable(lastLine(stderr));
  }

  async #route(remote: Remote, gitDir: string): Promise<Call> {
    const { config } = this.#app;
    const { signal, deadline } = this.#context;
    const { settings, env, after, refusal } =
      remote.kind === "ssh" ? await this.#bySsh(remote) : await this.#byHttp(remote);
    const limit = config.gitCheckoutMaxMb * mebibyte;
    const run = async (args: readonly string[]) => {
      const result = await git([...args], {
        cwd: gitDir,
        timeoutMs: deadline.timeoutMs(),
        settings: [...settings, [`protocol.${remote.kind}.allow`, "always"]],
        env,
        fileBytes: limit,
        okCodes: anyCode,
        signal,
      }).catch((error: unknown) => {
        signal.throwIfAborted();
        throw isLate(error) ? repositoryUnavailable("the fetch took too long.") : error;
      });
      await after();
      return result;
    };
    return {
      fetch: async (depth, ref) => {
        const to = ref.endsWith("/*") ? "refs/kontor/all/*" : wantedRef;
        const { code, stderr } = await run([
          "fetch",
          "--quiet",
          "--no-tags",
          "--no-recurse-submodules",
          "--no-write-fetch-head",
          "--no-auto-maintenance",
          `--depth=${depth}`,
          "--",
          remote.address,
          `+${ref}:${to}`,
        ]);
        return code === 0 ? undefined : stderr;
      },
      heads: async () => {
        const { code, stdout } = await run(["ls-remote", "--quiet", "--heads", "--", remote.address]);
        if (code !== 0) return undefined;
        return [...stdout.matchAll(/\trefs\/heads\/(.+)$/gm)].map(([, name = ""]) => name);
      },
      explain: (stderr) => {
        const refused = refusal();
        if (refused !== undefined) return repositoryRefused(refused);
        if (isCut(stderr)) return repositoryTooLarge("megabytes", config.gitCheckoutMaxMb);
        return explain(stderr, remote);
      },
    };
  }

  async #byHttp(remote: HttpRemote): Promise<Path> {
    const { config } = this.#app;
    let gate = this.#gates.get(remote.kind);
    if (gate === undefined) {
      const maxBytes = config.gitCheckoutMaxMb * mebibyte + listingBytes;
      const owner = this.#context.project.workspace_id;
      gate = await Gate.open({ opened: this.#opened, owner, onlyOpened: remote.kind === "http", maxBytes });
      this.#gates.set(remote.kind, gate);
    }
    const opened = gate;
    const settings: [string, string][] = [
      ["http.proxy", gate.address],
      // A forge redirects a renamed repository at the first request; later requests need no redirect.
      ["http.followRedirects", "initial"],
      ["http.sslVerify", "true"],
      ["http.lowSpeedLimit", "1000"],
      ["http.lowSpeedTime", "60"],
    ];
    if (config.gitCaFile !== null) settings.push(["http.sslCAInfo", config.gitCaFile]);
    const token = this.#tokenFor(remote);
    if (token !== undefined) settings.push([`http.${remote.origin}/.extraHeader`, token]);
    return { settings, env: {}, after: async () => {}, refusal: () => opened.refusal };
  }

  /** The token is sent only to the origin of the project's own repository. */
  #tokenFor(remote: HttpRemote): string | undefined {
    const { git_token_sealed: sealed, repo_url: url, id } = this.#context.project;
    if (sealed === null || url === null || URL.parse(url)?.origin !== remote.origin) return undefined;
    const token = openGitSecret(this.#app, "git_token", id, sealed);
    // Forges accept a token as the password of any user. Bitbucket requires a certain user; deploy tokens have their
    // own user.
    const user = remote.host.endsWith("bitbucket.org") ? "x-token-auth" : "oauth2";
    const pair = token.includes(":") ? token : `${user}:${token}`;
    return `Authorization: Basic ${Buffer.from(pair).toString("base64")}`;
  }

  async #bySsh(remote: SshRemote): Promise<Path> {
    const { project, scratch } = this.#context;
    const addresses = await allowedAddresses(this.#opened, remote.host, {
      owner: project.workspace_id,
    }).catch((error: Error) => {
      throw repositoryRefused(error.message);
    });
    const directory = join(scratch, `ssh-${this.#sshCount++}`);
    await mkdir(directory, { mode: 0o700 });
    const sealed = project.deploy_key_sealed;
    const ssh: Ssh = await prepareSsh(directory, remote, addresses[0]!, {
      privateKey: sealed === null ? null : openGitSecret(this.#app, "deploy_key", project.id, sealed),
      knownHosts: this.#knownHosts,
      strictFile: this.#app.config.gitKnownHosts,
    });
    const after = async () => {
      const now = await ssh.knownHosts();
      if (now === this.#knownHosts) return;
      this.#knownHosts = now;
      await saveKnownHosts(this.#app.db, project.id, now);
    };
    return { settings: [], env: ssh.env, after, refusal: () => undefined };
  }
}

function refOf(wanted: CommitRef): string {
  if ("sha" in wanted) return wanted.sha;
  return "tag" in wanted ? `refs/tags/${wanted.tag}` : `refs/heads/${wanted.branch}`;
}

interface Path {
  settings: GitSettings;
  env: Record<string, string>;
  after: () => Promise<void>;
  refusal: () => string | undefined;
}

interface Call {
  /** Undefined on success, else git's error output. */
  fetch(depth: number, ref: string): Promise<string | undefined>;
  /** Branches of the remote; undefined if the remote does not list them. */
  heads(): Promise<string[] | undefined>;
  explain(stderr: string): Error | undefined;
}

const signIn = {
  http: "the forge requires a sign-in. Set a git_token with read access, or check the address.",
  ssh: "the forge rejects the project's deploy key. Add the key at the forge, or check the address.",
};

/** Explains a failure whose cause git's error output shows, and names the cure. */
function explain(stderr: string, remote: Remote): Error | undefined {
  if (/REMOTE HOST IDENTIFICATION HAS CHANGED/.test(stderr)) return hostKeyChanged(remote.host);
  if (/Host key verification failed|No \S+ host key is known/.test(stderr))
    return repositoryRefused(`the host key of ${remote.host} is not in the list of trusted host keys.`);
  if (/Permission denied|Too many authentication failures/.test(stderr))
    return repositoryUnavailable(signIn.ssh);
  if (/could not read Username|Authentication failed|returned error: 40[13]/.test(stderr))
    return repositoryUnavailable(signIn.http);
  if (/repository .* not found|returned error: 404|does not appear to be a git repository/i.test(stderr))
    return repositoryUnavailable("no repository exists at its address.");
  if (/certificate|SSL|TLS/i.test(stderr))
    return repositoryUnavailable(`no secure connection to ${remote.host}: ${lastLine(stderr)}`);
  return undefined;
}

/**
 * At the file size limit the kernel ends index-pack with SIGXFSZ; git then reports only that index-pack's output is
 * invalid.
 */
function isCut(stderr: string): boolean {
  const complaints = stderr.split("\n").filter((line) => /^(?:fatal|error):/.test(line));
  return complaints.length === 1 && /invalid index-pack output/.test(complaints[0]!);
}

/** The remote host chooses this text, so it is cut to one printable line. */
function lastLine(stderr: string): string {
  const lines = stderr.split("\n").map((line) => line.replaceAll(/[^\u0020-\u007e]/g, "").trim());
  const line = lines.findLast((text) => /^(?:fatal|error|ssh)\b/.test(text)) ?? lines.findLast(Boolean);
  return (line ?? "git failed").slice(0, 300);
}
