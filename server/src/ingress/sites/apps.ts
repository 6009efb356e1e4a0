/**
 * Apps as sites: `<slug>.<domain>`, `<slug>--<environment>.<domain>`, and verified custom names. The machine that
 * serves a name is looked up in memory for each request. A switch applies from the next request on, and
 * `waitUntilDrained` resolves when the old machine's last request is over.
 *
 * A request to a sleeping app waits for it to wake, with its body unread. If a request's machine disappears before the
 * connection, the machine is looked up again. So a deployment, a sleep or a restart delays a visitor, but fails no
 * request.
 */
import type { IncomingMessage } from "node:http";
import { ConcurrencyLimit } from "../proxy/concurrency-limit.ts";
import { mayRepeat, NoResponse } from "../proxy/forward.ts";
import { toGuest, toVisitor } from "../proxy/headers.ts";
import { pathOf } from "./hosts.ts";
import { type PageFacts, sendPage } from "../pages.ts";
import { proxyRequest, refusalOf, PageError, type ProxyOptions, type Visit } from "../proxy/proxy-request.ts";
import { requestIdOf } from "../request-id.ts";
import type { Site } from "./site.ts";
import type { Traffic } from "../proxy/traffic.ts";
import type { Upstreams } from "./upstreams.ts";

/** The machine that serves an environment now. */
export interface AppRoute {
  environmentId: string;
  /** `down`: not running, or never deployed. `suspended`: the account is suspended, so the app is frozen. */
  state: "live" | "asleep" | "down" | "suspended";
  /** Null if the app does not run. */
  machine: string | null;
  /** Null before the first deployment. */
  port: number | null;
  /** True if nothing went live and the last deployment failed. */
  hasFailed?: boolean;
  /** Counts the bytes of the app's visitors. Absent or null if the app does not run. */
  traffic?: Traffic | null;
}

/** Functions that the ingress calls to find, wake and observe apps. */
export interface Apps {
  /**
   * `host` is a generated name, in lower case and without port. Reads memory only. Undefined if no app has the name.
   */
  find(host: string): AppRoute | undefined;
  /** Resolves when the app runs. Concurrent callers share one wake-up. */
  wake(environmentId: string): Promise<void>;
  /** Reports a response to a visitor. `ms` is the time from the request's headers to the response's headers. */
  recordResponse(
    environmentId: string,
    seen: { method: string; path: string; status: number; ms: number },
  ): void;
}

/** Custom names, each an alias of a generated name. */
export interface CustomHosts {
  /** Reads memory only. */
  generatedOf(host: string): string | undefined;
}

/** Maximum of attempts for one request, because a machine may disappear, sleep and wake meanwhile. */
const attempts = 6;
/** Delay before a machine that disappeared is looked up again; the route table is updated within this time. */
const againAfterMs = 50;
/** Deadline for an app to wake while a visitor waits. */
const wakeMs = 30_000;
/**
 * Limit of requests, streams and WebSockets in flight. A machine's guest holds 1,024 connections, some of them not of
 * visitors.
 */
const maxPerApp = 900;
const maxInAll = 8_000;
const maxBodyBytes = 1024 ** 3;
/** Status that is counted when a visitor disconnects before the response, as in nginx. */
const disconnectedStatus = 499;

export class AppSites {
  readonly #domain: string;
  readonly #apps: Apps;
  readonly #custom: CustomHosts;
  readonly #upstreams: Upstreams;
  readonly #bounds: ConcurrencyLimit;
  readonly #wakeMs: number;
  readonly #inMachines = new Map<string, { underWay: number; empty: Set<() => void> }>();

  /** `domain` has no port. */
  constructor(options: {
    domain: string;
    apps: Apps;
    custom: CustomHosts;
    upstreams: Upstreams;
    /** Limits for tests; the server uses the defaults. */
    limits?: { perApp?: number; wakeMs?: number };
  }) {
    this.#domain = `.${options.domain}`;
    this.#apps = options.apps;
    this.#custom = options.custom;
    this.#upstreams = options.upstreams;
    this.#bounds = new ConcurrencyLimit({ each: options.limits?.perApp ?? maxPerApp, all: maxInAll });
    this.#wakeMs = options.limits?.wakeMs ?? wakeMs;
  }

  match(host: string): Site | undefined {
    const isCustom = !host.endsWith(this.#domain);
    const generated = isCustom ? this.#custom.generatedOf(host) : host;
    if (generated === undefined) return undefined;
    const isThere = () => this.#apps.find(generated) !== undefined;
    // A name below our domain that is not an app's may belong to another rule.
    if (!isCustom && !isThere()) return undefined;
    const name = { host: generated, isCustom };
    return {
      exists: async () => isThere(),
      handle: (visitors) => this.#visit(name, { ...visitors, upgrade: undefined }),
      upgrade: (visitors, upgrade) => this.#visit(name, { ...visitors, upgrade }),
    };
  }

  /** Resolves to true when the machine has no request in flight, or to false at the timeout. */
  async waitUntilDrained(machine: string, timeoutMs: number): Promise<boolean> {
    const load = this.#inMachines.get(machine);
    if (load === undefined) return true;
    return new Promise((resolve) => {
      const finish = (isEmpty: boolean) => {
        clearTimeout(late);
        load.empty.delete(whenEmpty);
        resolve(isEmpty);
      };
      const whenEmpty = () => finish(true);
      const late = setTimeout(() => finish(false), timeoutMs);
      load.empty.add(whenEmpty);
    });
  }

  async #visit({ host, isCustom }: { host: string; isCustom: boolean }, visit: Visit): Promise<void> {
    const { request, response, visitor } = visit;
    const begun = performance.now();
    const requestId = requestIdOf(request);
    const own: PageFacts = { hsts: visitor.hsts || (isCustom && visitor.isSecure), requestId, isApp: true };
    let environment: string | undefined;
    let status: number | undefined;
    const reportResponse = (answered: number) => {
      if (status !== undefined || environment === undefined) return;
      status = answered;
      if (visitor.isProbe) return;
      const { method = "GET", url: path = "/" } = request;
      this.#apps.recordResponse(environment, { method, path, status, ms: performance.now() - begun });
    };
    try {
      const route = this.#find(host);
      environment = route.environmentId;
      if (Number(request.headers["content-length"] ?? 0) > maxBodyBytes) throw new PageError("too_large");
      if (!this.#bounds.acquire(environment)) throw new PageError("busy");
      try {
        await this.#serve(host, visit, route, (machine) => ({
          path: pathOf(request.url ?? "/"),
          headers: toGuest(request, visitor, { isUpgrade: visit.upgrade !== undefined, requestId }),
          toVisitor: (answer: IncomingMessage) => {
            reportResponse(answer.statusCode ?? 502);
            return toVisitor(answer, visitor.isProbe ? { ...own, machine } : own);
          },
          maxBodyBytes,
        }));
        // The visitor disconnected before a response.
        reportResponse(disconnectedStatus);
      } finally {
        this.#bounds.release(environment);
      }
    } catch (error) {
      const hasLeft = response.destroyed || request.socket.destroyed;
      const { page, detail } = refusalOf(error);
      sendPage(request, response, page, { ...own, ...(detail === undefined ? {} : { detail }) });
      reportResponse(hasLeft ? disconnectedStatus : response.statusCode);
      if (page === "unavailable" && !hasLeft) throw error;
    }
  }

  #find(host: string): AppRoute {
    const route = this.#apps.find(host);
    if (route === undefined) throw new PageError("not_found");
    return route;
  }

  async #serve(
    host: string,
    visit: Visit,
    found: AppRoute,
    sentTo: (machine: string) => ProxyOptions,
  ): Promise<void> {
    let route = found;
    for (let attempt = 1; attempt <= attempts; attempt += 1) {
      if (visit.response.destroyed) return;
      const { machine, port, traffic } = route;
      if (route.state === "suspended") {
        throw new PageError("suspended");
      } else if (route.state === "asleep") {
        // A probe visit goes only to an app that runs.
        if (visit.visitor.isProbe) throw new PageError("asleep");
        await this.#wake(route.environmentId);
      } else if (port === null) {
        throw new PageError(route.hasFailed === true ? "deploy_failed" : "not_deployed");
      } else if (route.state === "down" || machine === null) {
        throw new PageError("crashed");
      } else {
        const isLast = attempt === attempts;
        const sent = { ...sentTo(machine), ...(traffic && !visit.visitor.isProbe ? { traffic } : {}) };
        if (await this.#inMachine(machine, () => this.#pass(host, visit, route, sent, isLast))) return;
        const next = this.#find(host);
        if (next.state === "live" && next.machine === machine) await pause(againAfterMs);
      }
      route = this.#find(host);
    }
    throw new PageError("unavailable");
  }

  /**
   * Forwards the request to the machine. If a switch has replaced the machine meanwhile, a failure is not final as long
   * as the request may be sent again.
   */
  async #pass(
    host: string,
    visit: Visit,
    { machine, port }: AppRoute,
    sent: ProxyOptions,
    isLast: boolean,
  ): Promise<boolean> {
    try {
      return await proxyRequest(this.#upstreams, visit, { machine: machine!, port: port! }, sent);
    } catch (error) {
      const why = error instanceof NoResponse ? error.why : undefined;
      const mayMove =
        why === "not_listening" ||
        (why === "bad_response" && mayRepeat(visit.request) && !visit.response.headersSent);
      if (!mayMove || isLast) throw error;
      const now = this.#apps.find(host);
      if (now?.machine === machine && now?.port === port && now?.state === "live") throw error;
      return false;
    }
  }

  async #wake(environment: string): Promise<void> {
    let late: NodeJS.Timeout | undefined;
    const timeout = new Promise<never>((_resolve, reject) => {
      late = setTimeout(() => reject(new PageError("asleep")), this.#wakeMs);
    });
    try {
      await Promise.race([this.#apps.wake(environment), timeout]);
    } finally {
      clearTimeout(late);
    }
  }

  /** Counts the work from the look-up on, so that a switch knows about requests that have no connection yet. */
  async #inMachine<T>(machine: string, work: () => Promise<T>): Promise<T> {
    let load = this.#inMachines.get(machine);
    if (load === undefined) this.#inMachines.set(machine, (load = { underWay: 0, empty: new Set() }));
    load.underWay += 1;
    try {
      return await work();
    } finally {
      load.underWay -= 1;
      if (load.underWay === 0) {
        this.#inMachines.delete(machine);
        for (const tell of load.empty) tell();
      }
    }
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
