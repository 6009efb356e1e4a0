/**
 * Previews: a port of a sandbox as a site, at `<port>-<sandbox>.sbx.<domain>`. In this order: is there such a sandbox,
 * may this visitor see it, does it run (a paused one with `auto_resume` is woken, and whoever comes meanwhile waits for
 * the same resume), does something listen. Who it belongs to and whether it may be seen at all is answered by `find`.
 */
import type { IncomingMessage } from "node:http";
import { Bounds } from "./bounds.ts";
import { isToken, readTokens, tokenCookie } from "./credentials.ts";
import { toGuest, toVisitor } from "./headers.ts";
import { pathOf } from "./hosts.ts";
import { type PageFacts, sendPage } from "./pages.ts";
import { pass, refusalOf, Refused, type Sent, type Visit } from "./pass.ts";
import type { Site } from "./sites.ts";
import type { Connect, Upstreams } from "./upstreams.ts";

export type Preview = {
  /** Needed to see it; null: everybody may. */
  token: string | null;
} & (
  | { state: "running"; machine: string }
  | { state: "paused"; wakes: boolean }
  | { state: "terminated"; detail: string }
);

/** What is asked of whoever knows sandboxes, by id without its prefix. */
export interface Previews {
  /** From memory where it can be; `afresh` once what it said turned out to be over. Undefined: nothing to be seen. */
  find(sandbox: string, options?: { afresh: boolean }): Promise<Preview | undefined>;
  /** It runs when this settles. */
  wake(sandbox: string): Promise<void>;
  connect: Connect;
}

/** A machine may be paused, resumed and paused again under one request; not for ever. */
const attempts = 4;
/** Each connection is two threads of a machine's thousand. */
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
  readonly #bounds = new Bounds({ each: maxPerSandbox, all: maxInAll });

  /** `domain` without port. */
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
        throw new Refused("unauthorized");
      if (token !== null && isToken(shown.inQuery, token)) {
        facts.cookie = tokenCookie(token, request.headers, visitor.isSecure);
      }
      const sent = {
        path: shown.path,
        headers: toGuest(request, visitor, { isUpgrade: visit.upgrade !== undefined }),
        toVisitor: (answer: IncomingMessage) => toVisitor(answer, facts),
      };
      if (!this.#bounds.enter(visit.sandbox)) throw new Refused("busy");
      try {
        await this.#serve(visit, preview, sent);
      } finally {
        this.#bounds.leave(visit.sandbox);
      }
    } catch (error) {
      const { page, detail } = refusalOf(error);
      sendPage(request, response, page, { ...facts, ...(detail === undefined ? {} : { detail }) });
      if (page === "unavailable") throw error;
    }
  }

  async #find(sandbox: string, options?: { afresh: boolean }): Promise<Preview> {
    const preview = await this.#previews.find(sandbox, options);
    if (preview === undefined) throw new Refused("not_found");
    return preview;
  }

  /** To the machine the sandbox has now: a paused one is woken, and one that went meanwhile is looked up again. */
  async #serve(visit: PreviewVisit, found: Preview, sent: Sent): Promise<void> {
    let preview = found;
    for (let attempt = 1; attempt <= attempts; attempt += 1) {
      if (preview.state === "terminated") throw new Refused("terminated", preview.detail);
      if (preview.state === "paused") {
        if (!preview.wakes) throw new Refused("paused");
        await this.#previews.wake(visit.sandbox);
      } else {
        const { machine } = preview;
        if (await pass(this.#upstreams, visit, { machine, port: visit.port }, sent)) return;
      }
      preview = await this.#find(visit.sandbox, { afresh: true });
    }
    throw new Refused("unavailable");
  }
}
