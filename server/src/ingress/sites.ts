/** What the table of names holds: whoever serves the sites of one kind of name. */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Visitor } from "./headers.ts";
import type { Upgrade } from "./splice.ts";

export interface Visitors {
  request: IncomingMessage;
  response: ServerResponse;
  visitor: Visitor & {
    /** Answers say that the name is served by HTTPS alone. */
    hsts: boolean;
    /** It is ourselves who ask, to see who answers; the answer says by which machine. */
    isOurs: boolean;
  };
}

export interface Site {
  /** Whether there is really something here: only then a certificate is asked for. */
  exists(): Promise<boolean>;
  /** Settles when the answer is over, whatever became of it. A failure is logged, and answered by whoever throws it. */
  handle(visitors: Visitors): Promise<void>;
  /** Upgrades are refused where it is absent. */
  upgrade?: (visitors: Visitors, upgrade: Upgrade) => Promise<void>;
}

/** One row of the table. Called for every request: from memory, at once. */
export interface HostRule {
  /** `host` is in lower case and without port. Undefined where the name is none of these. */
  match(host: string): Site | undefined;
}

/** Names `<prefix>-<id>.sbx.<domain>` served by a handler of this process. */
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
