/**
 * Previews: a port of a sandbox as a site, at `<port>-<sandbox>.sbx.<domain>`. The checks run in this order: the
 * sandbox exists, the visitor may see it, it runs, and a process listens on the port. A paused sandbox with
 * `auto_resume` is resumed, and concurrent visitors wait for the same resume. `find` returns the owner and the
 * visibility.
 */
import type { IncomingMessage } from "node:http";
import { ConcurrencyLimit } from "../proxy/concurrency-limit.ts";
import { isToken, readTokens, tokenCookie } from "../credentials.ts";
import { toGuest, toVisitor } from "../proxy/headers.ts";
import { pathOf } from "./hosts.ts";
import { type PageFacts, sendPage } from "../pages.ts";
import { proxyRequest, refusalOf, PageError, type ProxyOptions, type Visit } from "../proxy/proxy-request.ts";
import type { Site } from "./site.ts";
import type { Connect, Upstreams } from "./upstreams.ts";

export type Preview = {
  /** The token that a visitor needs. Null for a public preview. */
  token: string | null;
} & (
  | { state: "running"; machine: string }
  | { state: "paused"; wakes: boolean }
  | { state: "terminated"; detail: string }
);

/** Functions that the ingress calls for sandboxes, by id without prefix. */
export interface Previews {
  /**
   * Looks up a sandbox's preview. Uses the cache, except with `afresh`, which is for a caller whose last result was
   * outdated. Undefined if visitors cannot see anything.
   */
  find(sandbox: string, options?: { afresh: boolean }): Promise<Preview | undefined>;
  /** Resolves when the sandbox runs. */
  wake(sandbox: string): Promise<void>;
  connect: Connect;
}

/** Maximum of attempts for one request, because a machine may be paused, resumed and paused again meanwhile. */
const attempts = 4;
/** Maximum of concurrent requests to a sandbox. Each connection uses two of a machine's thousand threads. */
const maxPerSandbox = 200;
const maxInAll = 4_000;

interface PreviewVisit extends Visit {
  sandbox: string;
  port: number;
}

export class PreviewSites {
  readonly #previews: Previews;
  readonly #upstreams: Upstreams;
  readonly #pattern: RegExp;
  readonly #bounds = new ConcurrencyLimit({ each: maxPerSandbox, all: maxInAll });

  /** `domain` has no port. */
  constructor(options: { domain: string; previews: Previews; upstreams: Upstreams }) {
    this.#previews = options.previews;
    this.#upstreams = options.upstreams;
    const domain = options.domain.replaceAll(".", "\\.");
    this.#pattern = new RegExp(`^([1-9]\\d{0,4})-([a-z0-9]{1,40})\\.sbx\\.${domain}$`);
  }

  match(host: string): Site | undefined {
    const [, digits, sandbox = ""] = this.#pattern.exec(host) ?? [];
    const port = Number(digits ?? 0);
    if (port < 1 || port > 65_535) return undefined;
    return {
      exists: async () => (await this.#previews.find(sandbox)) !== undefined,
      handle: (visitors) => this.#visit({ ...visitors, sandbox, port, upgrade: undefined }),
      upgrade: (visitors, upgrade) => this.#visit({ ...visitors, sandbox, port, upgrade }),
    };
  }

  async #visit(visit: PreviewVisit): Promise<void> {
    const { request, response, visitor, port } = visit;
    const facts: PageFacts = { port, hsts: visitor.hsts };
    try {
      const preview = await this.#find(visit.sandbox);
      const shown = readTokens(pathOf(request.url ?? "/"), request.headers);
      const { token } = preview;
      if (token !== null && !shown.tokens.some((one) => isToken(one, token)))
        throw new PageError("unauthorized");
      if (token !== null && isToken(shown.inQuery, token)) {
        facts.cookie = tokenCookie(token, request.headers, visitor.isSecure);
      }
      const sent = {
        path: shown.path,
        headers: toGuest(request, visitor, { isUpgrade: visit.upgrade !== undefined }),
        toVisitor: (answer: IncomingMessage) => toVisitor(answer, facts),
      };
      if (!this.#bounds.acquire(visit.sandbox)) throw new PageError("busy");
      try {
        await this.#serve(visit, preview, sent);
      } finally {
        this.#bounds.release(visit.sandbox);
      }
    } catch (error) {
      const { page, detail } = refusalOf(error);
      sendPage(request, response, page, { ...facts, ...(detail === undefined ? {} : { detail }) });
      if (page === "unavailable") throw error;
    }
  }

  async #find(sandbox: string, options?: { afresh: boolean }): Promise<Preview> {
    const preview = await this.#previews.find(sandbox, options);
    if (preview === undefined) throw new PageError("not_found");
    return preview;
  }

  /**
   * Serves from the sandbox's current machine. Resumes a paused sandbox. Looks up the machine again if it disappeared.
   */
  async #serve(visit: PreviewVisit, found: Preview, sent: ProxyOptions): Promise<void> {
    let preview = found;
    for (let attempt = 1; attempt <= attempts; attempt += 1) {
      if (preview.state === "terminated") throw new PageError("terminated", preview.detail);
      if (preview.state === "paused") {
        if (!preview.wakes) throw new PageError("paused");
        await this.#previews.wake(visit.sandbox);
      } else {
        const { machine } = preview;
        if (await proxyRequest(this.#upstreams, visit, { machine, port: visit.port }, sent)) return;
      }
      preview = await this.#find(visit.sandbox, { afresh: true });
    }
    throw new PageError("unavailable");
  }
}
