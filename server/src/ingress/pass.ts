/** One visit to one machine, a request or an upgrade, and why a visitor gets a page of ours instead of its answer. */
import { asNoAnswer, forward, type Forwarded, NoAnswer } from "./forward.ts";
import type { PageCode } from "./pages.ts";
import type { Visitors } from "./sites.ts";
import { splice, type Upgrade } from "./splice.ts";
import type { Upstreams } from "./upstreams.ts";

export interface Visit extends Visitors {
  /** Undefined where it is a request. */
  upgrade: Upgrade | undefined;
}

export type Sent = Omit<Forwarded, "machine" | "port">;

/** The visitor gets this page. */
export class Refused extends Error {
  override readonly name = "Refused";
  readonly page: PageCode;
  /** In place of the page's own sentence. */
  readonly detail: string | undefined;

  constructor(page: PageCode, detail?: string) {
    super(page);
    this.page = page;
    this.detail = detail;
  }
}

/**
 * True when it is over. False: the machine was gone before anything reached it, and the request can go elsewhere.
 * Throws `NoAnswer` where nothing was answered.
 */
export async function pass(
  upstreams: Upstreams,
  { request, response, upgrade }: Visit,
  { machine, port }: { machine: string; port: number },
  sent: Sent,
): Promise<boolean> {
  try {
    if (upgrade === undefined) await forward(upstreams, request, response, { machine, port, ...sent });
    else await splice(await upstreams.dial(machine, port).catch(asNoAnswer), upgrade, sent);
    return true;
  } catch (error) {
    if (error instanceof NoAnswer && error.why === "gone") return false;
    throw error;
  }
}

export function refusalOf(error: unknown): { page: PageCode; detail: string | undefined } {
  if (error instanceof Refused) return error;
  if (error instanceof NoAnswer && error.why !== "gone") return { page: error.why, detail: undefined };
  if ((error as { code?: unknown }).code === "account_suspended")
    return { page: "suspended", detail: undefined };
  return { page: "unavailable", detail: undefined };
}
