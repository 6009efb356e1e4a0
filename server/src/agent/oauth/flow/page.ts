/** Renders the pages of a sign-in. A page has one sentence and loads no other resource. */
import type { ServerResponse } from "node:http";

export const pageHeaders = {
  "content-type": "text/html; charset=utf-8",
  "cache-control": "no-store",
  "referrer-policy": "no-referrer",
  "x-frame-options": "DENY",
  "content-security-policy":
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
} as const;

export function sendPage(
  response: ServerResponse,
  status: number,
  { title, text }: { title: string; text: string },
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, { ...pageHeaders, ...headers });
  response.end(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>${escapeHtml(title)}</title>
<style>body { font: 1.1rem/1.5 system-ui, sans-serif; max-width: 32rem; margin: 20vh auto; padding: 0 1rem }</style>
</head>
<body>
<h1>${escapeHtml(title)}</h1>
<p>${escapeHtml(text)}</p>
</body>
</html>
`);
}

function escapeHtml(text: string): string {
  return text.replaceAll(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
