/** What an object store answers, read: the few elements of its XML that are of interest, and its refusals. */

export class S3Error extends Error {
  override readonly name = "S3Error";
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, said: string) {
    super(`The object store answered ${status}${code && ` ${code}`}${said && `: ${said}`}`);
    this.status = status;
    this.code = code;
  }
}

/** Worth another try: the network, a store that is busy or broke, nobody who answered in time. */
export function asksAgain(error: unknown): boolean {
  if (error instanceof S3Error) return (error.status >= 500 && error.status !== 501) || error.status === 429;
  // What fetch throws where no answer came.
  return (
    error instanceof TypeError || (error as Error | null)?.message === "the object store does not answer"
  );
}

/** What stands in each element of this name; S3's lists nest no element in one of its own name. */
export function elements(xml: string, name: string): string[] {
  return [...xml.matchAll(new RegExp(`<${name}>(.*?)</${name}>`, "gs"))].map(([, inner = ""]) => inner);
}

/** Of the first such element; empty where there is none. */
export function textOf(xml: string, name: string): string {
  const [inner = ""] = elements(xml, name);
  return inner.replaceAll(/&(?:#(\d+)|#x([0-9a-f]+)|(\w+));/gi, (whole, decimal, hex, named: string) => {
    if (decimal !== undefined) return String.fromCodePoint(Number(decimal));
    if (hex !== undefined) return String.fromCodePoint(Number.parseInt(String(hex), 16));
    return { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" }[named] ?? whole;
  });
}
