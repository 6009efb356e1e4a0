/**
 * A real authorization server for tests. The protected resource accepts only tokens of this server, and a test browser acts for a
 * person.
 */
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import Provider from "oidc-provider";
import { afterAll } from "vitest";

export interface SignInServer {
  issuer: string;
  /**
   * Address of the protected resource, which imitates an MCP server's authorization. Paths under `/write` require the
   * scope `tools:write`.
   */
  resource: string;
  /** Requests to the token endpoint. */
  tokenRequests: { grant: string; status: number; authorization: string | undefined; body: string }[];
  revocations: string[];
  /** Accounts and clients of the authorized calls to the resource. */
  calls: { account: string; client: string }[];
  /** Called before the provider. Returns true if this function has sent the response. */
  before: ((request: IncomingMessage, response: ServerResponse) => boolean) | undefined;
  /** If set, the resource refuses each token for which this function returns true. */
  refuses: ((token: string) => boolean) | undefined;
  /** Returns the scope of an access token. */
  scopeOf(token: string): Promise<string | undefined>;
}

export interface SignInOptions {
  /** Redirect URI of the pre-registered clients. */
  redirectUri: string;
  isRegistering?: boolean;
  takesDocuments?: boolean;
  accessTokenSeconds?: number;
  /** Fetch that the provider uses to read client metadata documents. */
  fetch?: typeof globalThis.fetch;
  /** If true, the resource has no metadata. */
  isSilent?: boolean;
}

export async function startSignInServer(options: SignInOptions): Promise<SignInServer> {
  const web = await listen();
  const door = await listen();
  const server: SignInServer = {
    issuer: web.url,
    resource: `${door.url}/mcp`,
    tokenRequests: [],
    revocations: [],
    calls: [],
    before: undefined,
    refuses: undefined,
    scopeOf: async (token) => (await provider.AccessToken.find(token))?.scope,
  };
  // The provider's library logs much that is irrelevant to the tests.
  const { warn, info } = console;
  console.warn = console.info = () => {};
  const provider = new Provider(server.issuer, configuration(options));
  console.warn = warn;
  console.info = info;
  const handle = provider.callback();
  web.server.on("request", (request, response) => {
    if (server.before?.(request, response)) return;
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    response.once("finish", () => {
      const body = Buffer.concat(chunks).toString();
      if (request.url === "/token/revocation") server.revocations.push(body);
      if (request.url !== "/token") return;
      const grant = new URLSearchParams(body).get("grant_type") ?? "";
      const { authorization } = request.headers;
      server.tokenRequests.push({ grant, status: response.statusCode, authorization, body });
    });
    handle(request, response);
  });
  door.server.on("request", (request, response) => {
    void enter(server, provider, options, request, response).catch(() => response.destroy());
  });
  return server;
}

function configuration(options: SignInOptions): object {
  return {
    clients: [
      {
        client_id: "known:beforehand/client",
        client_secret: "a+secret:of/the client%0123456789",
        redirect_uris: [options.redirectUri],
        grant_types: ["authorization_code", "refresh_token"],
        response_types: ["code"],
        application_type: "native",
      },
    ],
    cookies: { keys: ["a key of the tests"] },
    scopes: ["openid", "offline_access"],
    pkce: { required: () => true },
    issueRefreshToken: async () => true,
    rotateRefreshToken: true,
    ttl: { AccessToken: options.accessTokenSeconds ?? 3600, Interaction: 600, Session: 600, Grant: 86_400 },
    ...(options.fetch ? { fetch: options.fetch } : {}),
    features: {
      registration: { enabled: options.isRegistering ?? false },
      revocation: { enabled: true },
      clientIdMetadataDocument: { enabled: options.takesDocuments ?? false, ack: "draft-02" },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_: unknown, resource: string) => ({
          scope: "tools:use tools:write",
          audience: resource,
          accessTokenFormat: "opaque",
          accessTokenTTL: options.accessTokenSeconds ?? 3600,
        }),
        useGrantedResource: () => true,
      },
    },
  };
}

async function enter(
  server: SignInServer,
  provider: Provider,
  { isSilent = false }: SignInOptions,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const metadata = new URL("/.well-known/oauth-protected-resource/mcp", server.resource).href;
  const json = (status: number, body: unknown, headers: Record<string, string> = {}): void => {
    response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(body));
  };
  if (request.url === new URL(metadata).pathname && !isSilent) {
    const { resource, issuer } = server;
    return json(200, { resource, authorization_servers: [issuer], scopes_supported: ["tools:use"] });
  }
  if (!request.url?.startsWith("/mcp")) return json(404, {});
  const token = /^Bearer (.+)$/.exec(request.headers.authorization ?? "")?.[1];
  const found = token === undefined ? undefined : await provider.AccessToken.find(token);
  if (!found?.isValid || found.aud !== server.resource || server.refuses?.(token ?? "")) {
    const challenge = isSilent ? "Bearer" : `Bearer resource_metadata="${metadata}", scope="tools:use"`;
    return json(401, { error: "invalid_token" }, { "www-authenticate": challenge });
  }
  if (request.url === "/mcp/write" && !found.scope?.split(" ").includes("tools:write")) {
    const challenge = `Bearer error="insufficient_scope", scope="tools:write", resource_metadata="${metadata}"`;
    return json(403, { error: "insufficient_scope" }, { "www-authenticate": challenge });
  }
  server.calls.push({ account: found.accountId, client: found.clientId });
  json(200, { account: found.accountId });
}

/** Starts a server on a free port of loopback. The server stops after the test file. */
async function listen(): Promise<{ server: Server; url: string }> {
  const server = createServer();
  await once(server.listen(0, "127.0.0.1"), "listening");
  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

/** A browser with its own cookies. The browser follows redirects up to a given address. */
export class TestBrowser {
  readonly #cookies = new Map<string, Map<string, string>>();
  /** Maps addresses without a DNS entry to addresses that exist. */
  readonly #really: (url: string) => string;

  constructor(really: (url: string) => string = (url) => url) {
    this.#really = really;
  }

  cookies(origin: string): ReadonlyMap<string, string> {
    return this.#cookies.get(origin) ?? new Map();
  }

  /** Sends one request and does not follow a redirect. */
  async get(
    url: string,
    form?: Record<string, string>,
  ): Promise<{ status: number; text: string; headers: Headers }> {
    const { origin } = new URL(url);
    const jar = this.#cookies.get(origin) ?? new Map<string, string>();
    this.#cookies.set(origin, jar);
    const response = await fetch(this.#really(url), {
      redirect: "manual",
      headers: { cookie: [...jar].map(([name, value]) => `${name}=${value}`).join("; ") },
      ...(form ? { method: "POST", body: new URLSearchParams(form) } : {}),
    });
    for (const cookie of response.headers.getSetCookie()) {
      const [name = "", value = ""] = (cookie.split(";")[0] ?? "").split("=", 2);
      if (value === "") jar.delete(name);
      else jar.set(name, value);
    }
    return { status: response.status, text: await response.text(), headers: response.headers };
  }

  /** Follows redirects to a page, or to an address that begins with `stopAt`. */
  async follow(url: string, stopAt?: string, form?: Record<string, string>) {
    let at = url;
    let answer = await this.get(at, form);
    for (let step = 0; step < 20; step += 1) {
      const location = answer.headers.get("location");
      if (answer.status < 300 || answer.status >= 400 || location === null) return { url: at, ...answer };
      at = new URL(location, at).href;
      if (stopAt !== undefined && at.startsWith(stopAt)) return { url: at, ...answer, status: 0 };
      answer = await this.get(at);
    }
    throw new Error(`${url} redirects in a loop`);
  }

  /** Opens a link, signs in with an account, consents, and follows the redirects back, at most to `stopAt`. */
  async signIn(link: string, account: string, stopAt?: string) {
    let page = await this.follow(link, stopAt);
    for (let step = 0; step < 4; step += 1) {
      const action = /<form [^>]*action="([^"]+)"/.exec(page.text)?.[1];
      const prompt = /name="prompt" value="(\w+)"/.exec(page.text)?.[1];
      if (page.status === 0 || action === undefined || prompt === undefined) return page;
      const form = prompt === "login" ? { prompt, login: account, password: "x" } : { prompt };
      page = await this.follow(action, stopAt, form);
    }
    return page;
  }
}
