/**
 * Apps as sites: `<slug>.<domain>`, `<slug>--<environment>.<domain>`, and the custom names that were verified. Which
 * machine serves a name is asked anew for each request, of memory and at once: a switch to another one holds from the
 * next request on, and the one before knows when the last of its own is over (`drained`).
 *
 * A request to an app that sleeps waits for it to wake, with its body unread; one whose machine went between the look
 * and the connection is looked up again. So a deployment, a sleep or a restart costs a visitor time, never an answer.
 */
import type { IncomingMessage } from "node:http";
import { Bounds } from "./bounds.ts";
import { mayRepeat, NoAnswer } from "./forward.ts";
import { toGuest, toVisitor } from "./headers.ts";
import { pathOf } from "./hosts.ts";
import { type PageFacts, sendPage } from "./pages.ts";
import { pass, refusalOf, Refused, type Sent, type Visit } from "./pass.ts";
import { requestIdOf } from "./request-id.ts";
import type { Site } from "./sites.ts";
import type { Traffic } from "./traffic.ts";
import type { Upstreams } from "./upstreams.ts";

/** Where an environment is served at this moment. */
export interface AppRoute {
  environmentId: string;
  /** `down`: not running, or never deployed. `suspended`: the account is suspended, so the app is frozen. */
  state: "live" | "asleep" | "down" | "suspended";
  /** Null where it does not run. */
  machine: string | null;
  /** Null where nothing was ever deployed. */
  port: number | null;
  /** True if nothing went live and the last deployment failed. */
  hasFailed?: boolean;
  /** Counts the bytes of the app's visitors. Absent or null if the app does not run. */
  traffic?: Traffic | null;
}

/** What is asked of whoever knows apps. */
export interface Apps {
  /** `host` is a generated one, in lower case and without port. From memory, at once. Undefined: there is no such app. */
  find(host: string): AppRoute | undefined;
  /** It runs when this settles. Callers who come meanwhile share one waking. */
  wake(environmentId: string): Promise<void>;
  /** A visitor was answered: `ms` after the request's head was here, by the head of the answer. */
  observed(environmentId: string, seen: { method: string; path: string; status: number; ms: number }): void;
}

/** Custom names: each stands for a generated one. */
export interface CustomHosts {
  /** From memory, at once. */
  generatedOf(host: string): string | undefined;
}

/** A machine may go, be put to sleep and be woken under one request; not for ever. */
const attempts = 6;
/** Between a look that found a machine that is gone and the next one: whoever knows hears of it a moment later. */
const againAfterMs = 50;
/** How long a visitor waits for an app to wake. */
const wakeMs = 30_000;
/** Of requests, streams and WebSockets under way. A machine's guest holds 1,024 connections, some of them not visitors'. */
const maxPerApp = 900;
const maxInAll = 8_000;
const maxBodyBytes = 1024 ** 3;
/** What is answered when a visitor left before there was an answer, as nginx counts it. */
const leftStatus = 499;

export class AppSites {
  readonly #domain: string;
  readonly #apps: Apps;
  readonly #custom: CustomHosts;
  readonly #upstreams: Upstreams;
  readonly #bounds: Bounds;
  readonly #wakeMs: number;
  readonly #inMachines = new Map<string, { underWay: number; empty: Set<() => void> }>();

  /** `domain` without port. */
  constructor(options: {
    domain: string;
    apps: Apps;
    custom: CustomHosts;
    upstreams: Upstreams;
    /** For tests. */
    limits?: { perApp?: number; wakeMs?: number };
  }) {
    this.#domain = `.${options.domain}`;
    this.#apps = options.apps;
    this.#custom = options.custom;
    this.#upstreams = options.upstreams;
    this.#bounds = new Bounds({ each: options.limits?.perApp ?? maxPerApp, all: maxInAll });
    this.#wakeMs = options.limits?.wakeMs ?? wakeMs;
  }

  match(host: string): Site | undefined {
    const isCustom = !host.endsWith(this.#domain);
    const generated = isCustom ? this.#custom.generatedOf(host) : host;
    if (generated === undefined) return undefined;
    const isThere = () => this.#apps.find(generated) !== undefined;
    // A name of ours that is no app's may be another rule's.
    if (!isCustom && !isThere()) return undefined;
    const name = { host: generated, isCustom };
    return {
      exists: async () => isThere(),
      handle: (visitors) => this.#visit(name, { ...visitors, upgrade: undefined }),
      upgrade: (visitors, upgrade) => this.#visit(name, { ...visitors, upgrade }),
    };
  }

  /** True once nothing is under way in the machine; false where something still is after that time. */
  async drained(machine: string, timeoutMs: number): Promise<boolean> {
    const load = this.#inMachines.get(machine);
    if (load === undefined) return true;
    return new Promise((resolve) => {
      const done = (isEmpty: boolean) => {
        clearTimeout(late);
        load.empty.delete(whenEmpty);
        resolve(isEmpty);
      };
      const whenEmpty = () => done(true);
      const late = setTimeout(() => done(false), timeoutMs);
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
    const seen = (answered: number) => {
      if (status !== undefined || environment === undefined) return;
      status = answered;
      if (visitor.isOurs) return;
      const { method = "GET", url: path = "/" } = request;
      this.#apps.observed(environment, { method, path, status, ms: performance.now() - begun });
    };
    try {
      const route = this.#find(host);
      environment = route.environmentId;
      if (Number(request.headers["content-length"] ?? 0) > maxBodyBytes) throw new Refused("too_large");
      if (!this.#bounds.enter(environment)) throw new Refused("busy");
      try {
        await this.#serve(host, visit, route, (machine) => ({
          path: pathOf(request.url ?? "/"),
          headers: toGuest(request, visitor, { isUpgrade: visit.upgrade !== undefined, requestId }),
          toVisitor: (answer: IncomingMessage) => {
            seen(answer.statusCode ?? 502);
            return toVisitor(answer, visitor.isOurs ? { ...own, machine } : own);
          },
          maxBodyBytes,
        }));
        // He left before anything was answered.
        seen(leftStatus);
      } finally {
        this.#bounds.leave(environment);
      }
    } catch (error) {
      const hasLeft = response.destroyed || request.socket.destroyed;
      const { page, detail } = refusalOf(error);
      sendPage(request, response, page, { ...own, ...(detail === undefined ? {} : { detail }) });
      seen(hasLeft ? leftStatus : response.statusCode);
      if (page === "unavailable" && !hasLeft) throw error;
    }
  }

  #find(host: string): AppRoute {
    const route = this.#apps.find(host);
    if (route === undefined) throw new Refused("not_found");
    return route;
  }

  async #serve(
    host: string,
    visit: Visit,
    found: AppRoute,
    sentTo: (machine: string) => Sent,
  ): Promise<void> {
    let route = found;
    for (let attempt = 1; attempt <= attempts; attempt += 1) {
      if (visit.response.destroyed) return;
      const { machine, port, traffic } = route;
      if (route.state === "suspended") {
        throw new Refused("suspended");
      } else if (route.state === "asleep") {
        // Our own visit is to one that runs.
        if (visit.visitor.isOurs) throw new Refused("asleep");
        await this.#wake(route.environmentId);
      } else if (port === null) {
        throw new Refused(route.hasFailed === true ? "deploy_failed" : "not_deployed");
      } else if (route.state === "down" || machine === null) {
        throw new Refused("crashed");
      } else {
        const isLast = attempt === attempts;
        const sent = { ...sentTo(machine), ...(traffic && !visit.visitor.isOurs ? { traffic } : {}) };
        if (await this.#inMachine(machine, () => this.#pass(host, visit, route, sent, isLast))) return;
        const next = this.#find(host);
        if (next.state === "live" && next.machine === machine) await pause(againAfterMs);
      }
      route = this.#find(host);
    }
    throw new Refused("unavailable");
  }

  /** What one that was switched away from meanwhile does to a request is nobody's answer, where it may be sent again. */
  async #pass(
    host: string,
    visit: Visit,
    { machine, port }: AppRoute,
    sent: Sent,
    isLast: boolean,
  ): Promise<boolean> {
    try {
      return await pass(this.#upstreams, visit, { machine: machine!, port: port! }, sent);
    } catch (error) {
      const why = error instanceof NoAnswer ? error.why : undefined;
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
      late = setTimeout(() => reject(new Refused("asleep")), this.#wakeMs);
    });
    try {
      await Promise.race([this.#apps.wake(environment), timeout]);
    } finally {
      clearTimeout(late);
    }
  }

  /** Counted from the look-up on: from there a switch knows that somebody is still on the way. */
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
