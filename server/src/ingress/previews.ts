/**
 * Previews: a port of a sandbox as a site, at `<port>-<sandbox>.sbx.<domain>`. In this order: is there such a sandbox,
 * may this visitor see it, does it run (a paused one with `auto_resume` is woken, and whoever comes meanwhile waits for
 * the same resume), does something listen. Who it belongs to and whether it may be seen at all is answered by `find`.
 */
import type { IncomingMessage } from "node:http";
import { isToken, readTokens, tokenCookie } from "./credentials.ts";
import { asNoAnswer, forward, type Forwarded, NoAnswer } from "./forward.ts";
import { toGuest, toVisitor } from "./headers.ts";
import { pathOf } from "./hosts.ts";
import { type PageCode, type PageFacts, sendPage } from "./pages.ts";
import type { Site, Visitors } from "./sites.ts";
import { splice, type Upgrade } from "./splice.ts";
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

/** Why a visitor gets a page of ours instead of the guest's. */
class Refused extends Error {
  override readonly name = "Refused";
  readonly page: PageCode;
  readonly detail: string | undefined;

  constructor(page: PageCode, detail?: string) {
    super(page);
    this.page = page;
    this.detail = detail;
  }
}

interface Visit extends Visitors {
  sandbox: string;
  port: number;
  upgrade: Upgrade | undefined;
}

export class PreviewSites {
  readonly #previews: Previews;
  readonly #upstreams: Upstreams;
  readonly #pattern: RegExp;
  readonly #underWay = new Map<string, number>();
  #inAll = 0;

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

  async #visit(visit: Visit): Promise<void> {
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
        headers: toGuest(request, visitor, visit.upgrade !== undefined),
        toVisitor: (answer: IncomingMessage) => toVisitor(answer, facts),
      };
      await this.#counted(visit.sandbox, () => this.#serve(visit, preview, sent));
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
  async #serve(visit: Visit, found: Preview, sent: Sent): Promise<void> {
    let preview = found;
    for (let attempt = 1; attempt <= attempts; attempt += 1) {
      if (preview.state === "terminated") throw new Refused("terminated", preview.detail);
      if (preview.state === "paused") {
        if (!preview.wakes) throw new Refused("paused");
        await this.#previews.wake(visit.sandbox);
      } else {
        const { machine } = preview;
        const isOver = await this.#pass(visit, machine, sent).then(
          () => true,
          (error: unknown) => {
            if (error instanceof NoAnswer && error.why === "gone") return false;
            throw error;
          },
        );
        if (isOver) return;
      }
      preview = await this.#find(visit.sandbox, { afresh: true });
    }
    throw new Refused("unavailable");
  }

  async #pass({ request, response, port, upgrade }: Visit, machine: string, sent: Sent): Promise<void> {
    if (upgrade === undefined) {
      return forward(this.#upstreams, request, response, { machine, port, ...sent });
    }
    return splice(await this.#upstreams.dial(machine, port).catch(asNoAnswer), upgrade, sent);
  }

  async #counted(sandbox: string, work: () => Promise<void>): Promise<void> {
    const underWay = this.#underWay.get(sandbox) ?? 0;
    if (underWay >= maxPerSandbox || this.#inAll >= maxInAll) throw new Refused("busy");
    this.#underWay.set(sandbox, underWay + 1);
    this.#inAll += 1;
    try {
      await work();
    } finally {
      this.#inAll -= 1;
      const left = this.#underWay.get(sandbox)! - 1;
      if (left === 0) this.#underWay.delete(sandbox);
      else this.#underWay.set(sandbox, left);
    }
  }
}

type Sent = Omit<Forwarded, "machine" | "port">;

function refusalOf(error: unknown): { page: PageCode; detail: string | undefined } {
  if (error instanceof Refused) return error;
  if (error instanceof NoAnswer && error.why !== "gone") return { page: error.why, detail: undefined };
  return { page: "unavailable", detail: undefined };
}
