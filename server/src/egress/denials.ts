/**
 * Reasons for a denial, each with its cure. `phrase` goes into the status line, the only part of a CONNECT response
 * that some programs show. `text` is the body.
 */
interface DenialKind {
  status: number;
  phrase: string;
  text: (what: string) => string;
  /**
   * True if the denial counts as an attempt to reach a forbidden target. A failure of the destination or of this server
   * does not count.
   */
  isRefusal: boolean;
}

const kinds = {
  not_allowed: {
    status: 403,
    phrase: "Host not on the allowlist",
    text: (host) =>
      `${host} is not on this machine's allowlist. Add it with PATCH /v1/sandboxes/{id} ` +
      '{"allow_domains": [...]}, ' +
      `have the operator add it to default_egress_allowlist, or create the sandbox with network "open".`,
    isRefusal: true,
  },
  wrong_port: {
    status: 403,
    phrase: "Port not allowed",
    text: (authority) =>
      `${authority}: this port is not open. An allowed host is open on port 443 for HTTPS and on ` +
      "port 80 for HTTP, " +
      "unless default_egress_allowlist names another port for it.",
    isRefusal: true,
  },
  address: {
    status: 403,
    phrase: "Addresses are not allowed",
    text: (host) =>
      `${host} is an address. The proxy accepts only host names on the allowlist; use a host name.`,
    isRefusal: true,
  },
  private_address: {
    status: 403,
    phrase: "Host resolves to a private address",
    text: (host) =>
      `${host} resolves to an address that is not public, or belongs to this host. The operator can ` +
      "allow it with allow_private_hosts.",
    isRefusal: true,
  },
  wrong_server_name: {
    status: 403,
    phrase: "TLS server name differs",
    text: (host) => `the TLS server name must be ${host}, the host that CONNECT named.`,
    isRefusal: true,
  },
  not_restricted: {
    status: 403,
    phrase: "No allowlist",
    text: () => "this machine has no allowlist, so it may reach no host.",
    isRefusal: true,
  },
  use_connect: {
    status: 400,
    phrase: "Use CONNECT",
    text: () => "send HTTPS through CONNECT, and plain HTTP as GET http://host/path.",
    isRefusal: false,
  },
  bad_request: {
    status: 400,
    phrase: "Bad request",
    text: (why) => why,
    isRefusal: false,
  },
  no_such_name: {
    status: 502,
    phrase: "Host not found",
    text: (host) => `${host} could not be resolved; check its name.`,
    isRefusal: false,
  },
  unreachable: {
    status: 502,
    phrase: "Host unreachable",
    text: (host) => `${host} could not be reached, or closed the connection.`,
    isRefusal: false,
  },
  unavailable: {
    status: 503,
    phrase: "Try again",
    text: () => "the allowlist could not be read; retry shortly.",
    isRefusal: false,
  },
} satisfies Record<string, DenialKind>;

export type DenialCode = keyof typeof kinds;

export class Denial extends Error {
  override readonly name = "Denial";
  readonly code: DenialCode;
  readonly status: number;
  readonly phrase: string;
  readonly isRefusal: boolean;

  /** `what` is text from the machine. The text is cut, and characters that are not plain ASCII are replaced. */
  constructor(code: DenialCode, what = "") {
    const { status, phrase, text, isRefusal }: DenialKind = kinds[code];
    super(text(plain(what)));
    this.code = code;
    this.status = status;
    this.phrase = phrase;
    this.isRefusal = isRefusal;
  }

  get headers(): Record<string, string> {
    return {
      "Content-Type": "text/plain; charset=utf-8",
      "Content-Length": String(Buffer.byteLength(this.body)),
      "X-Kontor-Error": `egress_${this.code}`,
      Connection: "close",
    };
  }

  get body(): string {
    return `Kontor egress proxy: ${this.message}\n`;
  }

  /** The whole response, for a socket without a response object. */
  get bytes(): string {
    const head = Object.entries(this.headers).map(([name, value]) => `${name}: ${value}\r\n`);
    return `HTTP/1.1 ${this.status} ${this.phrase}\r\n${head.join("")}\r\n${this.body}`;
  }
}

/**
 * Returns a Denial unchanged. Converts any other error, which comes from the destination or the network, to a Denial.
 */
export function asDenial(error: unknown, host: string): Denial {
  return error instanceof Denial ? error : new Denial("unreachable", host);
}

/** Returns a denied target for reports. Host names have at most 253 characters, ports at most five. */
export function targetText(target: string): string {
  return plain(target).toLowerCase().slice(0, 260);
}

function plain(text: string): string {
  return text.replaceAll(/[^\x20-\x7e]/g, "?").slice(0, 300);
}
