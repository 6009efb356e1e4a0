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
    summary: "Projects with a custom domain, and how it stands",
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
    summary: "Ask DNS whether the custom domain points at the project",
    description:
      "Verified where its CNAME, by way of others if need be, names `cname_target`. A name that can have no CNAME leads here by ALIAS or address records, and a TXT record `_kontor.<hostname>` holds `cname_target`. Looked at again by itself: a pending one each minute, the others every ten.",
    scope: "platform:write",
    params: DomainParams,
    responses: { 200: Domain },
    errors: [projectNotFound, noCustomDomain],
    handler: ({ actor, params }) => verifyDomain(app, actor, params.project_id),
  }),
];
