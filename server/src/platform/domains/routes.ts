import { z } from "zod";
import { workspaceNotFound } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { projectNotFound } from "../projects/errors.ts";
import { listDomains, verifyDomain } from "./domains.ts";
import { noCustomDomain } from "./errors.ts";
import { Domain, DomainParams, DomainQuery } from "./schema.ts";

const common = { api: "platform", tag: "Domains" } as const;

export const domainRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/domains",
    operationId: "listDomains",
    summary: "List custom domains",
    description: "Returns the projects that have a custom domain, with its DNS status.",
    scope: "platform:read",
    query: DomainQuery,
    responses: { 200: z.array(Domain) },
    errors: [workspaceNotFound],
    handler: ({ actor, query }) => listDomains(app, actor, query.workspace),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/api/v1/domains/{project_id}/verify",
    operationId: "verifyDomain",
    summary: "Verify a custom domain",
    description:
      "Checks the domain's DNS records now. The domain is verified if its CNAME record names `cname_target`, directly or through other CNAMEs. An apex domain, which can have no CNAME, needs an ALIAS record to `cname_target` or address records of this server. It also needs a TXT record `_kontor.<hostname>` with the text `cname_target`. The server repeats the check: every minute while `pending`, else every ten minutes.",
    scope: "platform:write",
    params: DomainParams,
    responses: { 200: Domain },
    errors: [projectNotFound, noCustomDomain],
    handler: ({ actor, params }) => verifyDomain(app, actor, params.project_id),
  }),
];
