/**
 * Serves the interactive pages of the three documents: swagger-ui from disk, with a policy that blocks other sources.
 */
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import type { FastifyInstance } from "fastify";
import type { Api } from "../define-route.ts";
import { routeNotFound } from "../errors.ts";

const policy = [
  "default-src 'none'",
  "script-src 'self'",
  // swagger-ui sets style attributes itself.
  "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data:",
  "font-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");

const pages: Record<string, Api> = {
  "/docs": "platform",
  "/docs/sandbox": "sandbox",
  "/docs/agent": "agent",
};

const assets: Record<string, string> = {
  "swagger-ui.css": "text/css; charset=utf-8",
  "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
};

/** The start script is a separate file, because the policy allows no inline script. */
const startScript = `const { api } = document.body.dataset;
SwaggerUIBundle({ url: "/openapi/" + api + ".json", dom_id: "#page", deepLinking: true, validatorUrl: null });
`;

const page = (api: Api): string => `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Kontor ${api} API</title>
<link rel="stylesheet" href="/docs/assets/swagger-ui.css">
<body data-api="${api}">
<div id="page"></div>
<script src="/docs/assets/swagger-ui-bundle.js"></script>
<script src="/docs/assets/start.js"></script>
</body>
</html>
`;

export function serveDocs(fastify: FastifyInstance): void {
  const folder = dirname(createRequire(import.meta.url).resolve("swagger-ui-dist/package.json"));
  for (const [path, api] of Object.entries(pages)) {
    fastify.get(path, (_, reply) =>
      reply
        .type("text/html; charset=utf-8")
        .header("content-security-policy", policy)
        .header("x-content-type-options", "nosniff")
        .header("referrer-policy", "no-referrer")
        .send(page(api)),
    );
  }
  fastify.get("/docs/assets/start.js", (_, reply) =>
    reply.type("text/javascript; charset=utf-8").send(startScript),
  );
  fastify.get<{ Params: { file: string } }>("/docs/assets/:file", async (request, reply) => {
    const type = assets[request.params.file];
    if (type === undefined) throw routeNotFound();
    return reply
      .type(type)
      .header("cache-control", "public, max-age=3600")
      .send(await readFile(join(folder, request.params.file)));
  });
}
