/**
 * Certificates of a public authority (RFC 8555). A certificate is ordered at the first visit to a served name, and
 * proved by the authority's request to our plain HTTP listener (`http-01`). Certificates are kept on disk, in a file
 * for each name with its key and chain. Certificates are renewed when a third of their lifetime is left.
 *
 * Authorities limit orders, so unserved names are never ordered, and a refused name waits before the next order.
 */
import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { createSecureContext, type SecureContext } from "node:tls";
import acme from "acme-client";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { SingleFlight } from "#lib/concurrency/single-flight.ts";
import { writeFileWhole } from "#lib/state-file.ts";
import { bareHost } from "../sites/hosts.ts";
import type { Certificates } from "./certificates.ts";

export interface AcmeOptions {
  /** Directory of the account's key and the certificates. */
  directory: string;
  /** Directory URL of the authority (RFC 8555 §7.1.1). */
  directoryUrl: string;
  email: string | null;
  /** True if the name leads to a site now. */
  isServed: (host: string) => Promise<boolean>;
  log: (event: string, fields: Record<string, unknown>) => void;
}

interface StoredCertificate {
  context: SecureContext;
  renewAt: number;
  endsAt: number;
}

/** Maximum of concurrent orders. A visitor's handshake waits for an order. */
const ordersAtOnce = 4;
const lookEveryMs = 6 * 3_600_000;
const leftAloneMs = 10 * 60_000;
const maxLeftAlone = 10_000;
const challengePath = "/.well-known/acme-challenge/";

export class AcmeCertificates implements Certificates {
  readonly isPublic = true;
  readonly #options: AcmeOptions;
  readonly #client: acme.Client;
  readonly #held = new Map<string, StoredCertificate>();
  readonly #orders = new SingleFlight<SecureContext | undefined>();
  readonly #turns = new Semaphore(ordersAtOnce);
  /** Refused names, with the time before which they are not ordered again. */
  readonly #leftAlone = new Map<string, number>();
  /** Challenge responses by token. */
  readonly #answers = new Map<string, string>();
  readonly #timer: NodeJS.Timeout;

  private constructor(options: AcmeOptions, accountKey: Buffer) {
    this.#options = options;
    this.#client = new acme.Client({ directoryUrl: options.directoryUrl, accountKey });
    this.#timer = setInterval(() => void this.renew(), lookEveryMs).unref();
  }

  static async open(options: AcmeOptions): Promise<AcmeCertificates> {
    mkdirSync(options.directory, { recursive: true, mode: 0o700 });
    const certificates = new AcmeCertificates(
      options,
      await accountKey(join(options.directory, "account.key")),
    );
    certificates.#readStored();
    return certificates;
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async contextFor(name: string): Promise<SecureContext | undefined> {
    const host = bareHost(name);
    const held = this.#held.get(host);
    if (held !== undefined && held.endsAt > Date.now()) return held.context;
    if ((this.#leftAlone.get(host) ?? 0) > Date.now()) return undefined;
    if (!(await this.#options.isServed(host))) return undefined;
    return this.#order(host);
  }

  /** No authority certifies addresses, so clients without a server name get none. */
  async defaultCertificate(): Promise<undefined> {}

  /** Returns the response to the authority's challenge request. Undefined for any other request. */
  challenge(path: string): string | undefined {
    return path.startsWith(challengePath) ? this.#answers.get(path.slice(challengePath.length)) : undefined;
  }

  /** Renews certificates that expire soon and whose names are still served. Deletes expired certificates. */
  async renew(): Promise<void> {
    for (const [host, held] of this.#held) {
      if (held.endsAt < Date.now()) {
        this.#held.delete(host);
        rmSync(this.#file(host), { force: true });
      } else if (held.renewAt < Date.now() && (await this.#options.isServed(host).catch(() => false))) {
        await this.#order(host);
      }
    }
  }

  #order(host: string): Promise<SecureContext | undefined> {
    return this.#orders.run(host, () =>
      this.#turns.run(async () => {
        try {
          const [key, csr] = await acme.crypto.createCsr(
            { commonName: host, altNames: [host] },
            await acme.crypto.createPrivateEcdsaKey(),
          );
          const chain = await this.#client.auto({
            csr,
            ...(this.#options.email === null ? {} : { email: this.#options.email }),
            termsOfServiceAgreed: true,
            challengePriority: ["http-01"],
            // The library would send a request to this server by a name that may not be reachable from inside.
            skipChallengeVerification: true,
            challengeCreateFn: async (_authorization, { token }, answer) =>
              void this.#answers.set(token, answer),
            challengeRemoveFn: async (_authorization, { token }) => void this.#answers.delete(token),
          });
          const pem = `${key.toString()}\n${chain}`;
          writeFileWhole(this.#file(host), pem, 0o600);
          this.#options.log("issued a certificate", { host });
          return this.#store(host, pem).context;
        } catch (error) {
          this.#options.log("could not get a certificate", { host, error });
          this.#delayOrder(host);
          return this.#held.get(host)?.context;
        }
      }),
    );
  }

  #delayOrder(host: string): void {
    const oldest = this.#leftAlone.keys().next().value;
    if (oldest !== undefined && this.#leftAlone.size >= maxLeftAlone) this.#leftAlone.delete(oldest);
    this.#leftAlone.delete(host);
    this.#leftAlone.set(host, Date.now() + leftAloneMs);
  }

  #readStored(): void {
    for (const name of readdirSync(this.#options.directory)) {
      if (!name.endsWith(suffix)) continue;
      const host = name.slice(0, -suffix.length);
      try {
        this.#store(host, readFileSync(this.#file(host), "utf8"));
      } catch (error) {
        this.#options.log("could not read a certificate; a new one replaces it", { host, error });
      }
    }
  }

  #store(host: string, pem: string): StoredCertificate {
    const { notBefore, notAfter } = acme.crypto.readCertificateInfo(
      pem.slice(pem.indexOf("-----BEGIN CERTIFICATE")),
    );
    const held: StoredCertificate = {
      context: createSecureContext({ key: pem, cert: pem }),
      renewAt: notAfter.getTime() - (notAfter.getTime() - notBefore.getTime()) / 3,
      endsAt: notAfter.getTime(),
    };
    this.#held.set(host, held);
    return held;
  }

  /** A served host is a valid host name, so it holds no path separator. */
  #file(host: string): string {
    return join(this.#options.directory, host + suffix);
  }
}

const suffix = ".pem";

async function accountKey(file: string): Promise<Buffer> {
  try {
    return readFileSync(file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
  const key = await acme.crypto.createPrivateEcdsaKey();
  writeFileWhole(file, key.toString(), 0o600);
  return key;
}
