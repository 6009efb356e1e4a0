/**
 * Proxies a request or an upgrade to a machine, and decides which error page a visitor gets if the machine does not
 * respond.
 */
import { asNoResponse, forward, type ForwardOptions, NoResponse } from "./forward.ts";
import type { PageCode } from "../pages.ts";
import type { Visitors } from "../sites/site.ts";
import { splice, type Upgrade } from "./splice.ts";
import type { Upstreams } from "../sites/upstreams.ts";

export interface Visit extends Visitors {
  /** Undefined for an ordinary request. */
  upgrade: Upgrade | undefined;
}

export type ProxyOptions = Omit<ForwardOptions, "machine" | "port">;

/** Shows this error page to the visitor. */
export class PageError extends Error {
  override readonly name = "Refused";
  readonly page: PageCode;
  /** Replaces the page's own sentence. */
  readonly detail: string | undefined;

  constructor(page: PageCode, detail?: string) {
    super(page);
    this.page = page;
    this.detail = detail;
  }
}

/**
 * Returns true when the exchange is over. Returns false if the machine was gone before anything reached it, so that the
 * request can go to another machine. Throws `NoResponse` if there was no response.
 */
export async function proxyRequest(
  upstreams: Upstreams,
  { request, response, upgrade }: Visit,
  { machine, port }: { machine: string; port: number },
  sent: ProxyOptions,
): Promise<boolean> {
  try {
    if (upgrade === undefined) await forward(upstreams, request, response, { machine, port, ...sent });
    else await splice(await upstreams.dial(machine, port).catch(asNoResponse), upgrade, sent);
    return true;
  } catch (error) {
    if (error instanceof NoResponse && error.why === "gone") return false;
    throw error;
  }
}

export function refusalOf(error: unknown): { page: PageCode; detail: string | undefined } {
  if (error instanceof PageError) return error;
  if (error instanceof NoResponse && error.why !== "gone") return { page: error.why, detail: undefined };
  if ((error as { code?: unknown }).code === "account_suspended")
    return { page: "suspended", detail: undefined };
  return { page: "unavailable", detail: undefined };
}
