/**
 * Error pages for visitors when a guest cannot respond: HTML for people, `{detail, code}` for programs, and the header
 * `x-kontor-error` for both. No guest can send that header.
 */
import { randomUUID } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import { type OwnHeaders, ownHeaders } from "./proxy/headers.ts";

interface Page {
  status: number;
  title: string;
  detail: string;
  /** Hint in HTML, which only people see. */
  hint?: string;
  /** A browser reloads the page after this time; a program gets Retry-After. */
  againAfterSeconds?: number;
}

const pages = {
  not_found: { status: 404, title: "Nothing here", detail: "This address does not exist." },
  unauthorized: {
    status: 401,
    title: "A token is required",
    detail:
      "This preview requires its token: send it in the header X-Service-Preview-Token, the cookie " +
      "or the query parameter svc_preview_token.",
  },
  not_listening: {
    status: 502,
    title: "Nothing listens on this port yet",
    detail: "The sandbox runs, but no process in it listens on this port.",
    hint:
      "Start a server in it, for example <code>python3 -m http.server PORT</code> or <code>npx " +
      "serve -l PORT</code>. This page reloads automatically.",
    againAfterSeconds: 3,
  },
  paused: {
    status: 503,
    title: "The sandbox is paused",
    detail: "The sandbox is paused. Resume it to reach this address.",
  },
  terminated: { status: 410, title: "The sandbox is terminated", detail: "The sandbox is terminated." },
  busy: {
    status: 503,
    title: "Too many visitors",
    detail: "Too many requests are in flight; retry shortly.",
    againAfterSeconds: 2,
  },
  unavailable: {
    status: 503,
    title: "Not available now",
    detail: "The sandbox is not reachable at the moment; retry shortly.",
    againAfterSeconds: 5,
  },
  bad_response: {
    status: 502,
    title: "Invalid response",
    detail: "The server in the sandbox closed the connection, or its response is not valid HTTP.",
  },
  timeout: {
    status: 504,
    title: "No response in time",
    detail: "The server in the sandbox did not respond in time.",
  },
  too_large: {
    status: 413,
    title: "Too large",
    detail: "The body of the request is too large; send a smaller body.",
  },
  too_slow: {
    status: 408,
    title: "Too slow",
    detail: "The body of the request did not arrive in time; send it again.",
  },
  not_deployed: {
    status: 404,
    title: "No deployment yet",
    detail: "This app has no live deployment yet; deploy it first.",
    againAfterSeconds: 10,
  },
  deploy_failed: {
    status: 404,
    title: "The last deployment failed",
    detail: "This app has not gone live yet. The log of its last deployment has the reason.",
    againAfterSeconds: 10,
  },
  crashed: {
    status: 503,
    title: "The app has crashed",
    detail: "The app crashed and restarts automatically. Read its logs for the reason.",
    againAfterSeconds: 5,
  },
  asleep: {
    status: 503,
    title: "The app is still asleep",
    detail: "The app did not wake in time; retry shortly.",
    againAfterSeconds: 3,
  },
  suspended: {
    status: 503,
    title: "Suspended",
    detail: "The account that owns this address is suspended.",
  },
  bad_host: {
    status: 400,
    title: "Bad request",
    detail: "The request must name exactly one host; send a single Host header.",
  },
} as const satisfies Record<string, Page>;
export type PageCode = keyof typeof pages;

/** Pages for apps instead of ports of sandboxes. */
const appPages: Partial<Record<PageCode, Page>> = {
  not_listening: {
    ...pages.not_listening,
    title: "The app does not listen",
    detail: "The app runs, but no process in it listens on its port.",
    hint: "The app must listen on the port in the variable <code>PORT</code>.",
  },
  unavailable: { ...pages.unavailable, detail: "The app is not reachable at the moment; retry shortly." },
  bad_response: {
    ...pages.bad_response,
    detail: "The app closed the connection, or its response is not valid HTTP.",
  },
  timeout: { ...pages.timeout, detail: "The app did not respond in time." },
};

export interface PageFacts extends OwnHeaders {
  /** Replaces the page's own sentence. */
  detail?: string;
  port?: number;
  isApp?: boolean;
}

export function sendPage(
  request: IncomingMessage,
  response: ServerResponse,
  code: PageCode,
  facts: PageFacts,
): void {
  if (response.headersSent || response.destroyed) {
    response.destroy();
    return;
  }
  const page: Page = (facts.isApp ? appPages[code] : undefined) ?? pages[code];
  const detail = facts.detail ?? page.detail;
  const isForPeople = /\btext\/html\b/i.test(request.headers.accept ?? "");
  const body = isForPeople ? html(page, detail, facts.port) : JSON.stringify({ detail, code });
  response.writeHead(page.status, [
    "Content-Type",
    isForPeople ? "text/html; charset=utf-8" : "application/json; charset=utf-8",
    "Content-Length",
    String(Buffer.byteLength(body)),
    "Cache-Control",
    "no-store",
    "Content-Security-Policy",
    "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options",
    "nosniff",
    "X-Kontor-Error",
    code,
    ...(page.againAfterSeconds === undefined ? [] : ["Retry-After", String(page.againAfterSeconds)]),
    ...ownHeaders({ requestId: randomUUID(), ...facts }),
  ]);
  response.end(request.method === "HEAD" ? undefined : body);
}

function html({ title, hint, againAfterSeconds }: Page, detail: string, port: number | undefined): string {
  const again =
    againAfterSeconds === undefined ? "" : `<meta http-equiv="refresh" content="${againAfterSeconds}">`;
  const more = hint === undefined ? "" : `<p>${hint.replaceAll("PORT", String(port ?? 8000))}</p>`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
${again}<title>${title}</title>
<style>
:root { color-scheme: light dark; font: 16px/1.6 system-ui, sans-serif }
body { max-width: 34rem; margin: 18vh auto 0; padding: 0 1.5rem }
h1 { font-size: 1.5rem; font-weight: 600; margin: 0 0 .5rem }
p { margin: 0 0 .75rem; opacity: .8 }
code { background: #8883; border-radius: .3em; padding: .1em .35em }
</style>
</head>
<body><h1>${title}</h1><p>${escapeHtml(detail)}</p>${more}</body>
</html>
`;
}

function escapeHtml(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
