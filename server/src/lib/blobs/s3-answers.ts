/** Parses responses of an object store: the few XML elements that this server needs, and errors. */

export class S3Error extends Error {
  override readonly name = "S3Error";
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, said: string) {
    super(`The object store responded with ${status}${code && ` ${code}`}${said && `: ${said}`}`);
    this.status = status;
    this.code = code;
  }
}

/** True for errors that a retry may cure: network errors, timeouts, and a busy or failing store. */
export function isTransient(error: unknown): boolean {
  if (error instanceof S3Error) return (error.status >= 500 && error.status !== 501) || error.status === 429;
  // `fetch` throws a TypeError when it gets no response.
  return (
    error instanceof TypeError || (error as Error | null)?.message === "the object store does not respond"
  );
}

/** Returns the text of each element with this name. In S3's lists, no element contains another of the same name. */
export function elements(xml: string, name: string): string[] {
  return [...xml.matchAll(new RegExp(`<${name}>(.*?)</${name}>`, "gs"))].map(([, inner = ""]) => inner);
}

/** Returns the text of the first element with this name, or an empty string. */
export function textOf(xml: string, name: string): string {
  const [inner = ""] = elements(xml, name);
  return inner.replaceAll(/&(?:#(\d+)|#x([0-9a-f]+)|(\w+));/gi, (whole, decimal, hex, named: string) => {
    if (decimal !== undefined) return String.fromCodePoint(Number(decimal));
    if (hex !== undefined) return String.fromCodePoint(Number.parseInt(String(hex), 16));
    return { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" }[named] ?? whole;
  });
}
