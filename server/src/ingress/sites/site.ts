/** The rows of the ingress table: each rule serves the sites of one kind of name. */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Visitor } from "../proxy/headers.ts";
import type { Upgrade } from "../proxy/splice.ts";

export interface Visitors {
  request: IncomingMessage;
  response: ServerResponse;
  visitor: Visitor & {
    /** True if responses announce that the name is served by HTTPS only. */
    hsts: boolean;
    /** True for a probe visit of this server. The response then names the machine. */
    isProbe: boolean;
  };
}

export interface Site {
  /** True if the site exists, so that a certificate may be requested for it. */
  exists(): Promise<boolean>;
  /**
   * Resolves when the exchange is over, with or without success. A handler that throws gets its failure logged and
   * turned into an error page.
   */
  handle(visitors: Visitors): Promise<void>;
  /** Without this function, upgrades are refused. */
  upgrade?: (visitors: Visitors, upgrade: Upgrade) => Promise<void>;
}

/** A row of the table. Called for every request, so it reads memory only. */
export interface HostRule {
  /** `host` is in lower case and without port. Undefined if the name does not belong to this rule. */
  match(host: string): Site | undefined;
}

/** Builds the rule for names `<prefix>-<id>.sbx.<domain>`, which a handler of this process serves. */
export function handlerSites(options: {
  prefix: string;
  domain: string;
  exists: (id: string) => Promise<boolean>;
  handle: (id: string, request: IncomingMessage, response: ServerResponse) => Promise<void>;
}): HostRule {
  const domain = options.domain.replaceAll(".", "\\.");
  const pattern = new RegExp(`^${options.prefix}-([a-z0-9]{1,40})\\.sbx\\.${domain}$`);
  return {
    match(host) {
      const id = pattern.exec(host)?.[1];
      if (id === undefined) return undefined;
      return {
        exists: () => options.exists(id),
        handle: ({ request, response }) => options.handle(id, request, response),
      };
    },
  };
}
