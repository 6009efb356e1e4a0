/**
 * Hosted repositories over smart HTTP: `/git/<slug>.git`. A client sends an API token as the password of any user name.
 * For a project that the token cannot access, the response is the 404 of a missing one. The response is git's own. Only
 * the end of a push differs. The report waits until the new commits are queued for deployment. The deployment's log
 * follows the report. A client that disconnects loses that log, but does not stop the deployment.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { stat, statfs } from "node:fs/promises";
import type { Writable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { payerOf } from "#accounts/payers.ts";
import { type Actor, type Credential, hasScope } from "#accounts/actor.ts";
import { findActor } from "#accounts/find-actor.ts";
import { accountSuspended, insufficientRole } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { clientAddress, type IsTrusted, trustedProxies } from "#http/limits/client-address.ts";
import { addressLimited, methodNotAllowed, missingScope, rateLimited } from "#http/errors.ts";
import { RateLimiter } from "#http/limits/rate-limit.ts";
import { addressHolder, rateRules, unknownCredentialRule } from "#http/limits/rate-rules.ts";
import type { RawSite } from "#http/streams/raw-routes.ts";
import type { OpenStreams } from "#http/streams/open-streams.ts";
import { DomainError } from "#lib/errors.ts";
import { FairSemaphore } from "#lib/concurrency/fair-semaphore.ts";
import { MinimumRate, TooSlow } from "#lib/streams/minimum-rate.ts";
import { urlOf } from "#platform/environments/schema.ts";
import {
  type BackendAnswer,
  type BackendRequest,
  readAnswer,
  type Service,
  services,
  startBackend,
} from "./backend.ts";
import {
  bodyTooSlow,
  repositoryElsewhere,
  repositoryFull,
  repositoryNotFound,
  tokenRequired,
  tooManyWaiting,
} from "../errors.ts";
import {
  type GitSettings,
  mebibyte,
  repositoriesDirectory,
  repositoryDirectory,
  timeoutMsOf,
} from "../git.ts";
import type { Pushes, PushOutcome } from "./push.ts";
import { createRepository, pointHead, sizeOf } from "./repositories.ts";
import { keepAlive, message, Report } from "./sideband.ts";
import { findBySlug, type ProjectRow } from "../store.ts";

type Needs = Pick<App, "config" | "db" | "clock" | "log">;

/** Milliseconds without bytes after which a client counts as dead. Git itself sends data every five seconds. */
const idleMs = 60_000;
const keepAliveMs = 5_000;
/**
 * Milliseconds for which the rest of a request is read after an early response, so that the client reads the response.
 */
const drainRequestMs = 30_000;
/** Limit of a payer's requests that wait for a slot. */
const maxWaiting = 25;
/** Bytes of a body that must arrive before the request takes a slot: a whole fetch, or the head of a push. */
const earlyBytes = 16 * 1024;
/** Minimum rate of a transfer. The rate is an average over a window in which the server waits for the client. */
const minimumRate = { bytesPerSecond: 1024, windowMs: 30_000 };
/** Number of windows for a response. The kernel accepts the response in large chunks, so its rate varies more. */
const drainWindows = 4;

interface GitTarget {
  slug: string;
  service: Service;
  isAnnouncement: boolean;
}

/** Returns the handler of hosted repositories. The rate of a transfer is an average over `rateWindowMs`. */
export function gitSite(app: Needs, pushes: Pushes, options: { rateWindowMs?: number } = {}): RawSite {
  const hosting = new Hosting(app, pushes, options.rateWindowMs ?? minimumRate.windowMs);
  return {
    prefix: "/git/",
    handle: async (request, response, draining, streams) => {
      try {
        await hosting.answer(request, response, { draining, streams });
      } catch (error) {
        // The client has disconnected, which caused the error.
        if (response.destroyed) return;
        const known = error instanceof TooSlow ? bodyTooSlow(minimumRate.bytesPerSecond) : error;
        if (known instanceof DomainError && !response.headersSent) refuse(request, response, known);
        else if (error instanceof TooSlow) response.destroy();
        else throw error;
      }
    },
  };
}

class Hosting {
  readonly #app: Needs;
  readonly #pushes: Pushes;
  readonly #limiter: RateLimiter;
  readonly #isTrusted: IsTrusted;
  readonly #slots: FairSemaphore;
  readonly #rateWindowMs: number;

  constructor(app: Needs, pushes: Pushes, rateWindowMs: number) {
    this.#app = app;
    this.#rateWindowMs = rateWindowMs;
    this.#pushes = pushes;
    this.#limiter = new RateLimiter(app.clock);
    this.#isTrusted = trustedProxies(app.config.trustedProxies);
    const limit = app.config.gitConcurrency;
    // A payer gets at most half of the slots, so that other payers do not wait.
    const perOwner = Math.ceil(limit / 2);
    this.#slots = new FairSemaphore({ limit, perOwner, queue: { max: maxWaiting, refuse: tooManyWaiting } });
  }

  async answer(
    request: IncomingMessage,
    response: ServerResponse,
    { draining, streams }: { draining: AbortSignal; streams: OpenStreams },
  ): Promise<void> {
    const target = parseTarget(request);
    const { actor, credential } = await this.#authenticate(request);
    const unwatch = streams.add({ actor, credential, end: () => request.socket.destroy() });
    response.once("close", unwatch);
    if (response.destroyed) unwatch();
    const isPush = target.service === "git-receive-pack";
    const scope = isPush ? "platform:write" : "platform:read";
    if (!hasScope(actor, scope)) throw missingScope(scope);
    const project = await this.#projectOf(actor, target.slug, isPush);
    const settings = isPush ? await this.#pushSettings(project) : [];
    const call: BackendRequest = {
      ...target,
      repositories: repositoriesDirectory(this.#app),
      name: `${project.id}.git`,
      headers: headersOf(request),
      user: actor.id,
      settings,
      timeoutMs: timeoutMsOf(this.#app),
    };
    request.setTimeout(idleMs, () => request.socket.destroy());
    try {
      const body = await RequestBody.open(request, this.#rate());
      if (isPush && !target.isAnnouncement)
        await this.#push(project, actor, call, { body, response, draining });
      else {
        await this.#withSlot(project, response, () =>
          exchange(call, body, response, this.#rate(drainWindows), (_, piece) => piece),
        );
        response.end();
      }
    } finally {
      request.setTimeout(0);
      if (!request.complete) drainRequest(request);
    }
  }

  async #authenticate(request: IncomingMessage): Promise<{ actor: Actor; credential: Credential }> {
    const secret = secretOf(request.headers.authorization);
    const credential: Credential | undefined = secret === undefined ? undefined : { kind: "token", secret };
    const actor = credential && (await findActor(this.#app, credential));
    if (!actor) {
      if (credential) this.#countUnknown(clientAddress(request, this.#isTrusted) ?? undefined);
      throw tokenRequired();
    }
    if (this.#app.config.rateLimits) {
      for (const rule of rateRules(this.#app.config, { api: "platform" }, actor)) {
        const { isAllowed, retryAfterSeconds } = this.#limiter.take(actor.tokenId ?? actor.id, rule);
        if (!isAllowed) throw rateLimited(retryAfterSeconds);
      }
    }
    return { actor: { ...actor, ip: clientAddress(request, this.#isTrusted) }, credential };
  }

  #countUnknown(address: string | undefined): void {
    if (!this.#app.config.rateLimits) return;
    const verdict = this.#limiter.take(addressHolder(address), unknownCredentialRule(this.#app.config));
    if (!verdict.isAllowed) throw addressLimited(verdict.retryAfterSeconds);
  }

  async #projectOf(actor: Actor, slug: string, isPush: boolean): Promise<ProjectRow> {
    const project = await findBySlug(this.#app.db, slug);
    const workspace = actor.workspaces.find(({ id }) => id === project?.workspace_id);
    if (project === undefined || workspace === undefined) throw repositoryNotFound();
    if (project.repo_url !== null) throw repositoryElsewhere(project.repo_url);
    if (isPush && workspace.role === "viewer") throw insufficientRole("member");
    if (isPush && workspace.suspended) throw accountSuspended();
    const directory = repositoryDirectory(this.#app, project.id);
    const isThere = await stat(directory).then(
      () => true,
      () => false,
    );
    if (!isThere) await createRepository(this.#app, project.id);
    return project;
  }

  /** Returns git's settings for a push. A full repository or a full disk makes git refuse the push. */
  async #pushSettings(project: ProjectRow): Promise<GitSettings> {
    const { gitPushMaxMb, gitRepositoryMaxMb, diskReserveGb } = this.#app.config;
    const [used, disk] = await Promise.all([
      sizeOf(this.#app, project.id),
      statfs(repositoriesDirectory(this.#app)),
    ]);
    const free = disk.bavail * disk.bsize - diskReserveGb * 1024 ** 3;
    const room = Math.min(gitPushMaxMb * mebibyte, gitRepositoryMaxMb * mebibyte - used, free);
    if (room < mebibyte) throw repositoryFull(gitRepositoryMaxMb);
    return [
      ["receive.maxInputSize", String(Math.floor(room))],
      // Git accepts branches and tags only, and hides all other refs.
      ["receive.hideRefs", "refs"],
      ["receive.hideRefs", "!refs/heads"],
      ["receive.hideRefs", "!refs/tags"],
      ["receive.denyNonFastForwards", "false"],
      ["receive.denyDeletes", "false"],
      ["receive.denyDeleteCurrent", "ignore"],
      ["receive.denyCurrentBranch", "ignore"],
    ];
  }

  async #push(
    project: ProjectRow,
    actor: Actor,
    call: BackendRequest,
    { body, response, draining }: { body: RequestBody; response: ServerResponse; draining: AbortSignal },
  ): Promise<void> {
    const report = new Report();
    const receive = () =>
      exchange(call, body, response, this.#rate(drainWindows), ({ status }, piece) =>
        status === 200 ? report.take(piece) : piece,
      );
    await this.#withSlot(project, response, receive).catch((error: unknown) => {
      if (!response.destroyed) throw error;
    });
    // The push is handled even if its client has disconnected.
    const outcome = await this.#pushes.deployNewCommits(project, actor);
    if (outcome.lines.length + outcome.deployments.length > 0)
      await pointHead(this.#app, project.id, project.branch);
    await write(response, report.report());
    if (report.isBanded) await this.#reportPush(response, outcome, draining);
    await write(response, report.end());
    response.end();
  }

  /** Sends lines and the deployments' logs to the pusher, until the client disconnects. */
  async #reportPush(
    response: ServerResponse,
    { lines, deployments }: PushOutcome,
    draining: AbortSignal,
  ): Promise<void> {
    for (const line of lines) await write(response, message(`${line}\n`));
    const disconnected = new AbortController();
    response.once("close", () => disconnected.abort());
    if (response.destroyed) disconnected.abort();
    const signal = AbortSignal.any([disconnected.signal, draining]);
    const alive = setInterval(() => response.write(keepAlive), keepAliveMs);
    try {
      for (const deployment of deployments) {
        if (signal.aborted) break;
        const url = urlOf(this.#app, deployment.host_label);
        await write(response, message(`Deploying to ${url}\n`));
        await this.#follow(response, { id: deployment.id, url }, signal);
      }
      if (draining.aborted && deployments.length > 0)
        await write(response, message("The server restarts; the deployment continues afterwards.\n"));
    } finally {
      clearInterval(alive);
    }
  }

  async #follow(
    response: ServerResponse,
    { id, url }: { id: string; url: string },
    signal: AbortSignal,
  ): Promise<void> {
    let step = "";
    let shown = "";
    const queuedTimer = setTimeout(() => void write(response, message(queued)), queuedAfterMs);
    try {
      for await (const event of this.#pushes.follow(id, signal)) {
        if (signal.aborted) return;
        if ("text" in event) {
          clearTimeout(queuedTimer);
          const head = event.step === step ? "" : `-----> ${event.step}\n`;
          step = event.step;
          shown = (shown + event.text).slice(-shownChars);
          await write(response, message(head + event.text));
        } else {
          const isServed = event.status === "failed" && (await this.#pushes.isServed(id));
          const ending = endings[event.status]?.(url, causeOf(event.error, shown), isServed);
          if (ending !== undefined) await write(response, message(`${ending}\n`));
        }
      }
    } finally {
      clearTimeout(queuedTimer);
    }
  }

  #rate(windows = 1): MinimumRate {
    return new MinimumRate({ ...minimumRate, windowMs: this.#rateWindowMs * windows });
  }

  /** Runs `work` in a slot of the project's payer. A client that disconnects leaves the queue. */
  async #withSlot(project: ProjectRow, response: ServerResponse, work: () => Promise<void>): Promise<void> {
    const payer = await payerOf(this.#app.db, project.workspace_id);
    const disconnected = new AbortController();
    const leave = () => disconnected.abort();
    response.once("close", leave);
    if (response.destroyed) leave();
    try {
      await this.#slots.run(payer, work, { signal: disconnected.signal });
    } finally {
      response.off("close", leave);
    }
  }
}

/** Milliseconds without log lines after which the pusher reads that the deployment is queued. */
const queuedAfterMs = 1_500;
const queued = "-----> queued: waiting for its turn\n";
/** Characters at the end of the log that are compared with the last lines of an error. */
const shownChars = 64 * 1024;

/** Returns the error without those of its last lines that the log has already shown to the pusher. */
function causeOf(error: string | null, shown: string): string | null {
  const [, cause = "", last = ""] = /^(.*?)\s+(?:Last output|It said last):\n(.*)$/s.exec(error ?? "") ?? [];
  return last !== "" && shown.includes(last.trim()) ? cause : error;
}

const endings: Record<string, (url: string, error: string | null, isServed: boolean) => string> = {
  live: (url) => `-----> live at ${url}`,
  failed: (_url, error, isServed) =>
    `-----> failed: ${error ?? "see its log"}\n       ${isServed ? "The previous version stays live." : "Nothing is live yet."}`,
  cancelled: (_url, error) => `-----> cancelled${error === null ? "" : `: ${error}`}`,
  superseded: () => "-----> a newer deployment took over",
};

/** Body of a request. `open` resolves once `earlyBytes` of the body, or all of it, have arrived. */
class RequestBody {
  readonly #pieces: AsyncIterator<Buffer>;
  readonly #rate: MinimumRate;
  readonly #early: Buffer[] = [];
  #isWhole = false;

  private constructor(request: IncomingMessage, rate: MinimumRate) {
    this.#pieces = request.iterator({ destroyOnReturn: false }) as AsyncIterator<Buffer>;
    this.#rate = rate;
  }

  static async open(request: IncomingMessage, rate: MinimumRate): Promise<RequestBody> {
    const body = new RequestBody(request, rate);
    for (let bytes = 0; bytes < earlyBytes;) {
      const piece = await body.#next();
      if (piece === undefined) break;
      body.#early.push(piece);
      bytes += piece.length;
    }
    return body;
  }

  /** Yields the body, once. Throws `TooSlow` below the minimum rate. */
  async *read(): AsyncGenerator<Buffer> {
    yield* this.#early.splice(0);
    while (!this.#isWhole) {
      const piece = await this.#next();
      if (piece !== undefined) yield piece;
    }
    await this.#pieces.return?.();
  }

  async #next(): Promise<Buffer | undefined> {
    const { done, value } = await this.#rate.wait(this.#pieces.next(), (next) => next.value?.length ?? 0);
    this.#isWhole = done === true;
    return done ? undefined : value;
  }
}

/**
 * Runs the backend on the request, and sends each chunk of its response through `pass`. The headers are sent with the
 * first chunk. When the client disconnects, a fetch ends. For a partial push, git's input ends, so that git cleans up;
 * a complete push is executed. A client below the minimum rate ends both.
 */
async function exchange(
  call: BackendRequest,
  requestBody: RequestBody,
  response: ServerResponse,
  rate: MinimumRate,
  pass: (answer: BackendAnswer, piece: Buffer) => Buffer,
): Promise<void> {
  const backend = startBackend(call);
  const give = () => {
    if (call.service === "git-upload-pack") backend.end();
  };
  response.once("close", give);
  if (response.destroyed) give();
  let tooSlow: TooSlow | undefined;
  // Git may refuse a push before it has read the body. The response then contains the refusal.
  const sent = pipeline(requestBody.read(), backend.stdin).catch((error: unknown) => {
    // The pipeline has ended git's input, so that git cleans up.
    if (error instanceof TooSlow) tooSlow = error;
  });
  try {
    const answer = await readAnswer(backend);
    const begin = () => {
      if (response.headersSent || response.destroyed || tooSlow) return;
      response.writeHead(answer.status, { "cache-control": "no-store", ...answer.headers });
    };
    for await (const piece of answer.body as AsyncIterable<Buffer>) {
      const passed = pass(answer, piece);
      if (passed.length === 0 || tooSlow) continue;
      begin();
      await write(response, passed, rate);
    }
    await backend.ended;
    begin();
  } catch (cause) {
    backend.end();
    const { stderr } = await backend.ended;
    if (cause instanceof TooSlow) throw cause;
    throw tooSlow ?? new Error(`git http-backend failed: ${stderr.trim().slice(-500)}`, { cause });
  } finally {
    response.off("close", give);
    backend.stdin.destroy();
    await sent;
  }
  if (tooSlow) throw tooSlow;
}

/** Writes bytes, and waits while the reader is slow. Does nothing after the reader has disconnected. */
async function write(to: Writable, bytes: Buffer, rate?: MinimumRate): Promise<void> {
  if (bytes.length === 0 || to.destroyed || to.write(bytes)) return;
  const moved = new Promise<void>((resolve) => {
    const finish = () => {
      to.off("drain", finish);
      to.off("close", finish);
      resolve();
    };
    to.once("drain", finish);
    to.once("close", finish);
  });
  await (rate ? rate.wait(moved, () => bytes.length) : moved);
}

function parseTarget({ url = "", method = "" }: IncomingMessage): GitTarget {
  const [, slug = "", rest, query = ""] =
    /^\/git\/([a-z0-9-]{1,64})\.git\/([a-z/-]{1,40})(?:\?(.*))?$/.exec(url) ?? [];
  const isAnnouncement = rest === "info/refs";
  const named = isAnnouncement ? new URLSearchParams(query).get("service") : rest;
  const service = services.find((known) => known === named);
  if (service === undefined) throw repositoryNotFound();
  const allowed = isAnnouncement ? "GET" : "POST";
  if (method !== allowed) throw methodNotAllowed([allowed]);
  return { slug, service, isAnnouncement };
}

/**
 * Returns the token of a request: the password of Basic, its user name if the password is empty, or the token of
 * Bearer.
 */
function secretOf(authorization: string | undefined): string | undefined {
  const [, kind = "", value = ""] =
    /^(basic|bearer) +([\x21-\x7e]{1,512}) *$/i.exec(authorization ?? "") ?? [];
  if (kind.toLowerCase() === "bearer") return value;
  const [user = "", ...password] = Buffer.from(value, "base64").toString().split(":");
  return password.join(":") || user || undefined;
}

/** Returns the headers for the backend's environment. A malformed value is left out. */
function headersOf({ headers }: IncomingMessage): BackendRequest["headers"] {
  const matchValue = (value: string | string[] | undefined, shape: RegExp) =>
    typeof value === "string" && shape.test(value) ? value : undefined;
  return {
    contentType: matchValue(headers["content-type"], /^[\w./+-]{1,100}$/),
    contentEncoding: matchValue(headers["content-encoding"], /^(?:x-)?gzip$/),
    gitProtocol: matchValue(headers["git-protocol"], /^[\w=:.-]{1,100}$/),
  };
}

/** Responds with the error. Git shows a plain text body to its user. */
function refuse(request: IncomingMessage, response: ServerResponse, error: DomainError): void {
  const { status, detail, meta } = error;
  response.writeHead(status, {
    "content-type": "text/plain; charset=utf-8",
    "cache-control": "no-store",
    ...(status === 401 ? { "www-authenticate": 'Basic realm="Kontor", charset="UTF-8"' } : {}),
    ...(typeof meta["retry_after"] === "number" ? { "retry-after": String(meta["retry_after"]) } : {}),
    ...(status === 408 ? { connection: "close" } : {}),
  });
  response.end(`${detail}\n`);
  if (!request.complete) drainRequest(request);
}

/**
 * Reads the rest of a request. A client that still sends would otherwise get a broken pipe, and would never read the
 * reason.
 */
function drainRequest(request: IncomingMessage): void {
  request.resume();
  const cut = setTimeout(() => request.socket.destroy(), drainRequestMs);
  const finish = () => clearTimeout(cut);
  request.once("end", finish);
  request.socket.once("close", finish);
}
