/**
 * Client of a container registry (OCI distribution-spec 1.1), for one repository and one pull. Users choose the
 * registry, so the address of every request, redirect and token service is checked before the connection. Credentials
 * are sent to their own registry and to the token service that this registry names. Credentials are never sent to the
 * target of a redirect. Requests use https; plain http is tried only for a host that the operator allowed
 * (`allow_private_hosts`).
 */
import { once } from "node:events";
import http, { type IncomingMessage } from "node:http";
import https from "node:https";
import { isIP, type LookupFunction } from "node:net";
import { z } from "zod";
import type { OpenedHosts } from "#lib/network/addresses.ts";
import { allowedAddresses } from "#lib/network/allowed-addresses.ts";
import { accepted } from "./manifest.ts";
import { apiHostOf, type ImageReference } from "./reference.ts";
import { RegistryError } from "./registry-error.ts";

export interface RegistryCredential {
  /** Host of the registry, with its port. */
  registry: string;
  username: string;
  password: string;
}

export interface ClientOptions {
  opened: OpenedHosts;
  /** Id of the workspace that DNS look-ups are counted for. */
  owner: string;
  credential: RegistryCredential | null;
  signal: AbortSignal;
}

/** Registries must accept manifests of 4 MiB (distribution-spec, "Pushing Manifests"). */
export const manifestMaxBytes = 4 * 1024 ** 2;
const tokenMaxBytes = 256 * 1024;
const errorMaxBytes = 64 * 1024;
const maxRedirects = 5;
const redirects: ReadonlySet<number> = new Set([301, 302, 303, 307, 308]);
/** Error codes of a TLS handshake with a server that expects plain http. */
const notTls: ReadonlySet<string> = new Set(["EPROTO", "ECONNRESET", "ERR_SSL_WRONG_VERSION_NUMBER"]);

export class RegistryClient implements Disposable {
  readonly #reference: ImageReference;
  readonly #options: ClientOptions;
  readonly #agents = {
    "http:": new http.Agent({ keepAlive: true }),
    "https:": new https.Agent({ keepAlive: true }),
  };
  #origin: string | undefined;
  #authorization: string | undefined;

  constructor(reference: ImageReference, options: ClientOptions) {
    this.#reference = reference;
    this.#options = options;
  }

  [Symbol.dispose](): void {
    for (const agent of Object.values(this.#agents)) agent.destroy();
  }

  /** Returns the manifest of a tag or digest, with the media type of the response. */
  async manifest(version: string): Promise<{ bytes: Buffer; type: string }> {
    const response = await this.#get(`manifests/${version}`, { accept: accepted });
    const bytes = await readAll(response, manifestMaxBytes, "its manifest");
    return { bytes, type: response.headers["content-type"] ?? "" };
  }

  /** Returns the body of a blob. The caller checks size and digest. */
  blob(digest: string): Promise<IncomingMessage> {
    return this.#get(`blobs/${digest}`, {});
  }

  /**
   * Sends a GET, and authenticates after a 401 response. Such a response comes at the first request, and again when a
   * token expires during a long pull.
   */
  async #get(path: string, headers: Record<string, string>): Promise<IncomingMessage> {
    const origin = (this.#origin ??= await this.#findOrigin());
    const url = new URL(`${origin}/v2/${this.#reference.repository}/${path}`);
    let { response, isOwn } = await this.#follow(url, headers, this.#authorization);
    // A redirect may lead to another host. A challenge of that host could name a thief as the token service, so it is
    // ignored.
    if (response.statusCode === 401 && isOwn) {
      const challenge = response.headers["www-authenticate"] ?? "";
      response.destroy();
      this.#authorization = await this.#authorize(challenge);
      ({ response, isOwn } = await this.#follow(url, headers, this.#authorization));
    }
    if (response.statusCode === 401 && !isOwn) {
      response.destroy();
      throw new RegistryError(`${url.host} redirects to a host that refuses the download.`);
    }
    if (response.statusCode === 200) return response;
    throw await this.#refusal(response);
  }

  async #findOrigin(): Promise<string> {
    const host = apiHostOf(this.#reference);
    const url = new URL(`https://${host}/v2/`);
    try {
      (await this.#request(url, {})).destroy();
      return url.origin;
    } catch (error) {
      const code = ((error as Error).cause as NodeJS.ErrnoException | undefined)?.code ?? "";
      if (!notTls.has(code) || !(await this.#isOpened(url.hostname))) throw error;
      return `http://${host}`;
    }
  }

  async #isOpened(host: string): Promise<boolean> {
    const { opened, owner } = this.#options;
    const addresses = await allowedAddresses(opened, host, { owner, onlyOpened: true }).catch(() => []);
    return addresses.length > 0;
  }

  async #follow(
    from: URL,
    headers: Record<string, string>,
    authorization: string | undefined,
  ): Promise<{ response: IncomingMessage; isOwn: boolean }> {
    let url = from;
    for (let hops = 0; hops <= maxRedirects; hops += 1) {
      const isOwn = url.origin === from.origin;
      const response = await this.#request(url, {
        ...headers,
        ...(isOwn && authorization !== undefined ? { authorization } : {}),
      });
      if (!redirects.has(response.statusCode ?? 0)) return { response, isOwn };
      response.destroy();
      const next = URL.parse(response.headers.location ?? "", url.href);
      if (!next || !/^https?:$/.test(next.protocol))
        throw new RegistryError(`${url.host} redirects to an invalid address.`);
      // Storage behind a registry that the operator allowed may use plain http; other storage must use https.
      if (next.protocol === "http:" && !(await this.#isOpened(bare(next))))
        throw new RegistryError(`${url.host} redirects to an address without https.`);
      next.username = "";
      next.password = "";
      url = next;
    }
    throw new RegistryError(`${from.host} redirects more than ${maxRedirects} times.`);
  }

  /** Sends a request to a checked address, and returns the response. The caller reads or destroys the body. */
  async #request(url: URL, headers: Record<string, string>): Promise<IncomingMessage> {
    const { opened, owner, signal } = this.#options;
    signal.throwIfAborted();
    const addresses = await allowedAddresses(opened, bare(url), { owner }).catch((error: unknown) => {
      throw new RegistryError((error as Error).message);
    });
    const protocol = url.protocol === "https:" ? "https:" : "http:";
    const request = (protocol === "https:" ? https : http).get(url, {
      agent: this.#agents[protocol],
      lookup: lookupIn(addresses),
      headers: { ...headers, "user-agent": "kontor" },
      signal,
    });
    // Without a listener for `upgrade`, a response that switches protocols would leave the wait for a response pending.
    const switched = new AbortController();
    request.once("upgrade", (_response, socket) => {
      socket.destroy();
      switched.abort();
    });
    try {
      const [response] = (await once(request, "response", {
        signal: AbortSignal.any([signal, switched.signal]),
      })) as [IncomingMessage];
      // The body's reader receives its errors. An error without a reader must not end the process.
      response.on("error", () => {});
      return response;
    } catch (error) {
      signal.throwIfAborted();
      if (switched.signal.aborted)
        throw new RegistryError(`${url.host} switches to another protocol than HTTP.`, { cause: error });
      const { code } = error as NodeJS.ErrnoException;
      throw new RegistryError(`${url.host} cannot be reached${code === undefined ? "" : ` (${code})`}.`, {
        cause: error,
      });
    } finally {
      request.on("error", () => {});
    }
  }

  /** Returns the header that satisfies a challenge (RFC 9110, section 11.6.1; distribution's token authentication). */
  async #authorize(challenge: string): Promise<string | undefined> {
    const { registry } = this.#reference;
    const { credential } = this.#options;
    const own = credential?.registry === registry ? credential : null;
    const basic = own && `Basic ${Buffer.from(`${own.username}:${own.password}`).toString("base64")}`;
    const [, scheme = "", rest = ""] = /^\s*(\w+)\s*(.*)$/s.exec(challenge.slice(0, 4096)) ?? [];
    if (scheme.toLowerCase() === "basic") {
      if (basic === null) throw this.#unauthorized();
      return basic;
    }
    if (scheme.toLowerCase() !== "bearer") throw this.#unauthorized();
    const parameters = new Map(
      [...rest.matchAll(/(\w+)="([^"]*)"/g)].map(([, name = "", value = ""]) => [name.toLowerCase(), value]),
    );
    const realm = URL.parse(parameters.get("realm") ?? "");
    if (!realm || !/^https?:$/.test(realm.protocol) || realm.username !== "")
      throw new RegistryError(`${registry} sends no valid address of a token service.`);
    if (realm.protocol === "http:" && !(await this.#isOpened(bare(realm))))
      throw new RegistryError(`${registry} has a token service without https.`);
    const service = parameters.get("service");
    if (service !== undefined) realm.searchParams.set("service", service);
    realm.searchParams.set("scope", `repository:${this.#reference.repository}:pull`);
    const { response } = await this.#follow(realm, {}, basic ?? undefined);
    if (response.statusCode === 401 || response.statusCode === 403) {
      response.destroy();
      throw this.#unauthorized();
    }
    if (response.statusCode !== 200) throw await this.#refusal(response);
    const body = await readAll(response, tokenMaxBytes, "its token");
    const answer = Token.safeParse(parse(body));
    const token = answer.data?.token ?? answer.data?.access_token;
    if (token === undefined) throw new RegistryError(`${registry} returned no token.`);
    return `Bearer ${token}`;
  }

  #unauthorized(): RegistryError {
    const { registry } = this.#reference;
    const isKnown = this.#options.credential?.registry === registry;
    return new RegistryError(
      isKnown
        ? `${registry} refuses the project's registry_credential. Set one whose user may pull the image.`
        : `${registry} requires a login, or has no such image. Correct the reference, or set the project's registry_credential for ${registry}.`,
    );
  }

  async #refusal(response: IncomingMessage): Promise<RegistryError> {
    const { registry } = this.#reference;
    const { statusCode = 0 } = response;
    const body = await readAll(response, errorMaxBytes, "its error").catch(() => Buffer.alloc(0));
    if (statusCode === 401 || statusCode === 403) return this.#unauthorized();
    if (statusCode === 404) return new RegistryError(`${registry} has no such image or tag.`);
    if (statusCode === 429)
      return new RegistryError(
        `${registry} limits the number of pulls. Try again later, or set the project's registry_credential, which may have a higher limit.`,
      );
    const detail = Refusal.safeParse(parse(body)).data?.errors?.[0]?.message;
    const said = detail === undefined ? "" : `: ${plain(detail)}`;
    return new RegistryError(`${registry} responds with status ${statusCode}${said}.`);
  }
}

const Token = z.object({
  token: headerValue().optional(),
  access_token: headerValue().optional(),
});
const Refusal = z.object({ errors: z.array(z.object({ message: z.string().optional() })).optional() });

function headerValue() {
  return z
    .string()
    .min(1)
    .max(64 * 1024)
    .regex(/^[\x21-\x7e]+$/);
}

function parse(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString()) as unknown;
  } catch {
    return undefined;
  }
}

/** Returns a remote server's text as one line without control characters. */
function plain(text: string): string {
  return text
    .toWellFormed()
    .replaceAll(/\p{C}+/gu, " ")
    .trim()
    .slice(0, 200)
    .replace(/\.$/, "");
}

function bare(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, "");
}

/** Returns a look-up function for a socket that resolves to checked addresses only. */
function lookupIn(addresses: readonly string[]): LookupFunction {
  const all = addresses.map((address) => ({ address, family: isIP(address) }));
  return (_host, options, callback) => {
    if (options.all) callback(null, all);
    else callback(null, all[0]!.address, all[0]!.family);
  };
}

async function readAll(response: IncomingMessage, maxBytes: number, noun: string): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const piece of response as AsyncIterable<Buffer>) {
      bytes += piece.length;
      if (bytes > maxBytes) break;
      pieces.push(piece);
    }
  } catch (error) {
    throw new RegistryError(`the download of ${noun} broke off.`, { cause: error });
  }
  if (bytes > maxBytes) throw new RegistryError(`${noun} is larger than ${maxBytes} bytes.`);
  return Buffer.concat(pieces);
}
