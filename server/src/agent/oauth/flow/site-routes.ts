/**
 * Serves `/connect/`: sign-in pages, and the client metadata document for providers. These requests carry no API token.
 * The secret in the link's URL authorizes the first request, and the browser's cookie authorizes the rest.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { App } from "#app.ts";
import type { RawSite } from "#http/streams/raw-routes.ts";
import { type CallbackResult, handleCallback } from "./callback.ts";
import { callbackPath, clientDocument, documentPath, publicBase, sitePrefix } from "../provider/clients.ts";
import { SignInFault } from "../provider/sign-in-fault.ts";
import { LinkError, openLink } from "./open-link.ts";
import { sendPage, pageHeaders } from "./page.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export function connectSite(app: Needs): RawSite {
  return {
    prefix: sitePrefix,
    handle: async (request, response) => {
      try {
        await answer(app, request, response);
      } catch (error) {
        const title = "The sign-in failed";
        if (error instanceof LinkError) sendPage(response, error.status, { title, text: error.message });
        else if (error instanceof SignInFault) sendPage(response, 502, { title, text: error.message });
        else throw error;
      }
    },
  };
}

async function answer(app: Needs, request: IncomingMessage, response: ServerResponse): Promise<void> {
  // Only GET is allowed: a HEAD request must not use the link up.
  if (request.method !== "GET") return void response.writeHead(405, { allow: "GET" }).end();
  const url = new URL(request.url ?? "/", "http://localhost");
  if (url.pathname === documentPath) {
    response.writeHead(200, { "content-type": "application/json", "cache-control": "public, max-age=3600" });
    return void response.end(JSON.stringify(clientDocument(app.config)));
  }
  const cookies = cookiesOf(app, request);
  if (url.pathname === callbackPath) {
    return sendBack(app, response, await handleCallback(app, url.searchParams, cookies));
  }
  const nonce = url.pathname.slice(sitePrefix.length);
  if (!/^[A-Za-z0-9_-]{32}$/.test(nonce))
    throw new LinkError(404, "This link does not exist. Request a new one.");
  const { location, cookie } = await openLink(app, nonce, cookies);
  response.writeHead(303, {
    ...pageHeaders,
    location,
    "set-cookie": setCookie(app, cookie.name, cookie.value, cookie.lifeSeconds),
  });
  response.end();
}

function sendBack(
  app: Needs,
  response: ServerResponse,
  { toolset, fault, returnUrl, cookieName }: CallbackResult,
): void {
  const headers = { "set-cookie": setCookie(app, cookieName, "", 0) };
  if (returnUrl !== null) {
    const location = new URL(returnUrl);
    location.searchParams.set("connection", fault ? "failed" : "connected");
    if (fault) location.searchParams.set("error", fault.code ?? "unavailable");
    response.writeHead(303, { ...pageHeaders, ...headers, location: location.href });
    return void response.end();
  }
  const page = fault
    ? { title: "You are not connected", text: `${fault.message} Request a new link to try again.` }
    : { title: "You are connected", text: `${toolset} can now act for you. You may close this page.` };
  sendPage(response, fault ? 400 : 200, page, headers);
}

const isSecure = ({ config }: Needs): boolean => publicBase(config).startsWith("https:");

/**
 * Returns the header that sets a cookie. With TLS, the prefix `__Host-` keeps apps on subdomains from setting this
 * cookie (RFC 6265bis, section 4.1.3).
 */
function setCookie(app: Needs, name: string, value: string, maxAgeSeconds: number): string {
  const [prefix, secure] = isSecure(app) ? ["__Host-", "; Secure"] : ["", ""];
  return `${prefix}${name}=${value}; Path=/; Max-Age=${maxAgeSeconds}; HttpOnly; SameSite=Lax${secure}`;
}

/** Returns the cookies by name without the prefix. With TLS, cookies without the prefix are ignored. */
function cookiesOf(app: Needs, { headers }: IncomingMessage): Map<string, string> {
  const prefix = isSecure(app) ? "__Host-" : "";
  return new Map(
    (headers.cookie ?? "").split(";").flatMap((pair): [string, string][] => {
      const [name = "", value = ""] = pair.trim().split("=", 2);
      return name.startsWith(prefix) ? [[name.slice(prefix.length), value]] : [];
    }),
  );
}
