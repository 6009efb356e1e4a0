/**
 * Fetches a commit from a remote repository into the checkout's own repository. The fetch is shallow, and bounded in
 * bytes and time. Each connection goes to a vetted address (`proxy-gate.ts`, `ssh.ts`). If the remote refuses, the
 * project's owner gets our explanation, or the last line of git's output.
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
  /** Directory for files that a fetch needs outside the repository. */
  scratch: string;
  deadline: { timeoutMs: () => number };
  signal: AbortSignal;
}

/** Commit to fetch: by its id, by a tag, or the newest of a branch. */
export type CommitRef = { sha: string } | { tag: string } | { branch: string };

/** Ref of the fetched commit in the checkout's own repository. */
const wantedRef = "refs/kontor/wanted";
/** Depths at which the branch is fetched in turn, if the server does not serve the commit by its id. */
const depths = [50, 1000, 20_000];
/** Bytes allowed for the forge's list of refs, in addition to the limit of the fetch. */
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

  /**
   * Fetches a commit and returns its id. If the server does not serve the commit by its id, the commit is searched in
   * `branch`.
   */
  async fetch(gitDir: string, remote: Remote, wanted: CommitRef, branch: string | null): Promise<string> {
    const call = await this.#route(remote, gitDir);
    const failure = await call.fetch(1, refOf(wanted));
    if (failure === undefined) return this.#resolve(gitDir, wanted);
    // The gate or the host refused the connection, so the failure reveals nothing about the repository's content.
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
    // A tag may name a file instead of a commit.
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
      // A forge redirects a renamed repository at the first request. Later requests need no redirect.
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

  /** Returns the token for a remote with the origin of the project's own repository; undefined for any other. */
  #tokenFor(remote: HttpRemote): string | undefined {
    const { git_token_sealed: sealed, repo_url: url, id } = this.#context.project;
    if (sealed === null || url === null || URL.parse(url)?.origin !== remote.origin) return undefined;
    const token = openGitSecret(this.#app, "git_token", id, sealed);
    // Forges accept a token as the password of any user name. Bitbucket requires a certain name. A deploy token has a
    // user name of its own.
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
  /** Fetches a ref. Returns undefined on success, else git's error output. */
  fetch(depth: number, ref: string): Promise<string | undefined>;
  /** Returns the branches of the remote; undefined if the remote does not list them. */
  heads(): Promise<string[] | undefined>;
  explain(stderr: string): Error | undefined;
}

const signIn = {
  http: "the forge requires a sign-in. Set a git_token with read access, or check the address.",
  ssh: "the forge rejects the project's deploy key. Add the key at the forge, or check the address.",
};

/** Returns an error with the cause and the fix, if git's error output reveals the cause. */
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
 * True if the limit of a file's size ended the fetch. The kernel then ends index-pack with SIGXFSZ, and git reports
 * only an invalid output of index-pack.
 */
function isCut(stderr: string): boolean {
  const complaints = stderr.split("\n").filter((line) => /^(?:fatal|error):/.test(line));
  return complaints.length === 1 && /invalid index-pack output/.test(complaints[0]!);
}

/**
 * Returns the last line of a text. The remote host chooses the text, so the line is shortened and has only printable
 * characters.
 */
function lastLine(stderr: string): string {
  const lines = stderr.split("\n").map((line) => line.replaceAll(/[^\u0020-\u007e]/g, "").trim());
  const line = lines.findLast((text) => /^(?:fatal|error|ssh)\b/.test(text)) ?? lines.findLast(Boolean);
  return (line ?? "git failed").slice(0, 300);
}
