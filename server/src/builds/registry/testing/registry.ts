/** A container registry on loopback (OCI distribution-spec, pull): anonymous, with Basic or with Bearer authentication. */
import { once } from "node:events";
import http, { type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { type Blob, digestOf, type TestImage } from "./image.ts";

export interface RegistryOptions {
  /** Authentication that the registry requires. Default: none. */
  auth?: { kind: "basic" | "bearer"; username: string; password: string };
  /** True if blobs are served from another port, to which the registry redirects. */
  hasStorage?: boolean;
  host?: string;
}

export interface SeenRequest {
  server: "registry" | "storage" | "tokens";
  path: string;
  authorization: string | undefined;
}

export class TestRegistry implements AsyncDisposable {
  readonly #options: RegistryOptions;
  readonly #manifests = new Map<string, Blob>();
  readonly #blobs = new Map<string, Buffer>();
  readonly #servers: http.Server[] = [];
  #storage: string | undefined;
  /** All requests, oldest first. */
  readonly seen: SeenRequest[] = [];
  /** Handler that runs before a blob is sent. Returns true if it sent the response. */
  onBlob: (digest: string, response: ServerResponse) => boolean = () => false;
  /** Handler that runs before the registry sends any other response. Returns true if it sent the response. */
  onRequest: (request: IncomingMessage, response: ServerResponse) => boolean = () => false;
  /** Number of the token that the registry accepts. `rotate` increases it. */
  #token = 1;

  private constructor(options: RegistryOptions) {
    this.#options = options;
  }

  static async open(options: RegistryOptions = {}): Promise<TestRegistry> {
    const registry = new TestRegistry(options);
    await registry.#listen((request, response) => registry.#serve(request, response));
    if (options.hasStorage)
      registry.#storage = await registry.#listen((request, response) => registry.#store(request, response));
    return registry;
  }

  /** Host and port of the registry. */
  get host(): string {
    return hostOf(this.#servers[0]!);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const server of this.#servers) {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    }
  }

  /** Stores an image under a tag and its digest, and returns the digest. */
  push(name: string, { manifest, blobs }: TestImage): string {
    for (const blob of blobs) this.#blobs.set(digestOf(blob), blob);
    return this.pushManifest(name, manifest);
  }

  /** Stores a manifest under `name`, in the form `team/app:tag`. */
  pushManifest(name: string, manifest: Blob): string {
    const [repository = "", tag = "latest"] = name.split(":");
    const digest = digestOf(manifest.bytes);
    for (const version of [tag, digest]) this.#manifests.set(`${repository}/manifests/${version}`, manifest);
    return digest;
  }

  /** Invalidates all issued tokens. */
  rotate(): void {
    this.#token += 1;
  }

  /** Digests of the requested blobs. */
  get downloads(): string[] {
    return this.seen.flatMap(({ path }) => /\/blobs\/(sha256:\w+)$/.exec(path)?.[1] ?? []);
  }

  async #listen(serve: (request: IncomingMessage, response: ServerResponse) => void): Promise<string> {
    const server = http.createServer(serve);
    this.#servers.push(server);
    server.listen(0, this.#options.host ?? "127.0.0.1");
    await once(server, "listening");
    return hostOf(server);
  }

  #serve(request: IncomingMessage, response: ServerResponse): void {
    const { pathname, searchParams } = new URL(request.url ?? "/", `http://${this.host}`);
    const { authorization } = request.headers;
    const server = pathname === "/token" ? "tokens" : "registry";
    this.seen.push({ server, path: pathname, authorization });
    if (this.onRequest(request, response)) return;
    if (server === "tokens") return this.#giveToken(searchParams, authorization, response);
    if (!this.#mayPull(authorization)) return this.#challenge(response);
    if (pathname === "/v2/") return void response.end("{}");
    const [, repository, kind, version = ""] =
      /^\/v2\/(.+)\/(manifests|blobs)\/([^/]+)$/.exec(pathname) ?? [];
    if (kind === "manifests") {
      const found = this.#manifests.get(`${repository}/manifests/${version}`);
      if (!found) return fail(response, 404, "MANIFEST_UNKNOWN");
      response.setHeader("content-type", found.mediaType);
      response.setHeader("docker-content-digest", digestOf(found.bytes));
      return void response.end(found.bytes);
    }
    if (kind !== "blobs") return fail(response, 404, "NAME_UNKNOWN");
    if (this.#storage === undefined) return this.#sendBlob(version, response);
    response.writeHead(307, { location: `http://${this.#storage}/storage/blobs/${version}` }).end();
  }

  #store(request: IncomingMessage, response: ServerResponse): void {
    const { authorization } = request.headers;
    const path = request.url ?? "";
    this.seen.push({ server: "storage", path, authorization });
    // Storage services refuse a request with a second kind of authentication.
    if (authorization !== undefined) return fail(response, 400, "AUTHORIZATION");
    this.#sendBlob(path.split("/").at(-1) ?? "", response);
  }

  #sendBlob(digest: string, response: ServerResponse): void {
    if (this.onBlob(digest, response)) return;
    const blob = this.#blobs.get(digest);
    if (blob) response.end(blob);
    else fail(response, 404, "BLOB_UNKNOWN");
  }

  #mayPull(authorization: string | undefined): boolean {
    const { auth } = this.#options;
    if (auth === undefined) return true;
    return authorization === (auth.kind === "basic" ? basicOf(auth) : `Bearer pull-${this.#token}`);
  }

  #challenge(response: ServerResponse): void {
    const isBasic = this.#options.auth?.kind === "basic";
    const bearer = `Bearer realm="http://${this.host}/token",service="test registry",scope="registry:catalog:*"`;
    response.setHeader("www-authenticate", isBasic ? 'Basic realm="registry"' : bearer);
    fail(response, 401, "UNAUTHORIZED");
  }

  #giveToken(query: URLSearchParams, authorization: string | undefined, response: ServerResponse): void {
    const { auth } = this.#options;
    const isForPull = /^repository:.+:pull$/.test(query.get("scope") ?? "");
    if (!auth || query.get("service") !== "test registry" || !isForPull) return fail(response, 400, "QUERY");
    if (authorization !== basicOf(auth)) return fail(response, 401, "UNAUTHORIZED");
    response.end(JSON.stringify({ token: `pull-${this.#token}`, expires_in: 300 }));
  }
}

function basicOf({ username, password }: { username: string; password: string }): string {
  return `Basic ${Buffer.from(`${username}:${password}`).toString("base64")}`;
}

function hostOf(server: http.Server): string {
  const { address, port } = server.address() as AddressInfo;
  return `${address}:${port}`;
}

function fail(response: ServerResponse, status: number, code: string): void {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify({ errors: [{ code, message: `refused: ${code}` }] }));
}
