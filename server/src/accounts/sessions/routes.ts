import type { IncomingHttpHeaders } from "node:http";
import { z } from "zod";
import { credentialOf } from "#http/credential.ts";
import { answer, defineRoute, type Route } from "#http/define-route.ts";
import { addressLimited } from "#http/errors.ts";
import type { App } from "../../app.ts";
import { scopes, teamRoles } from "../actor.ts";
import { fullAccessErrors, requireFullAccess } from "../full-access.ts";
import { changePassword, passwordWrong } from "../users/users.ts";
import { signInLimited } from "../errors.ts";
import {
  describeCaller,
  endSession,
  listSessions,
  noteRefusal,
  sessionNotFound,
  sessionSeconds,
  signIn,
  signInRefused,
  signOut,
} from "./sessions.ts";
import { cookie, endedCookie, secureAttribute, SignInLimits } from "./sign-in-routes.ts";

const SessionCreate = z
  .object({ email: z.string().min(1).max(254), password: z.string().min(1).max(1024) })
  .meta({ id: "SessionCreate" });

const SessionResponse = z
  .object({
    user: z.object({ id: z.guid(), email: z.string(), name: z.string(), is_operator: z.boolean() }),
    kind: z.enum(["user", "api_token", "worker", "system"]),
    scopes: z.array(z.enum(scopes)).nullable(),
    workspaces: z.array(
      z.object({
        id: z.guid(),
        kind: z.enum(["personal", "team"]),
        name: z.string(),
        role: z.enum(teamRoles),
        plan: z.enum(["starter", "pro", "team"]),
        sandbox_tier: z.enum(["free", "payg", "enterprise"]),
        suspended: z.boolean(),
      }),
    ),
  })
  .meta({ id: "SessionResponse" });

const PasswordChange = z
  .object({ current_password: z.string().min(1).max(1024), new_password: z.string().min(8).max(1024) })
  .meta({ id: "PasswordChange" });

const SessionEntry = z
  .object({
    id: z.guid(),
    created_at: z.iso.datetime(),
    last_seen_at: z.iso.datetime(),
    expires_at: z.iso.datetime(),
    ip: z.string().nullable(),
    user_agent: z.string().nullable(),
    current: z.boolean().describe("True for the session that sent this request."),
  })
  .meta({ id: "SessionEntry" });

export const sessionRoutes = (app: Pick<App, "db" | "clock" | "log" | "config" | "secrets">): Route[] => {
  const limits = new SignInLimits(app);
  return [
    defineRoute({
      api: "platform",
      method: "POST",
      path: "/api/v1/session",
      operationId: "signIn",
      tag: "Session",
      summary: "Sign in; sets the session cookie",
      scope: "public",
      extension: true,
      body: SessionCreate,
      responses: { 201: SessionResponse },
      errors: [signInRefused, signInLimited, addressLimited],
      handler: async ({ body, request, reply }) => {
        const { ip } = request;
        const { cookie: cookies, "user-agent": userAgent = null } = request.headers;
        try {
          limits.allowSignIn({ email: body.email, ip, cookies });
        } catch (error) {
          if (limits.shouldNoteRefusal(ip))
            await noteRefusal(app, "session.limited", { email: body.email, ip });
          throw error;
        }
        const { secret, actor } = await signIn(app, { ...body, ip, userAgent });
        // The response sets the session's cookie too.
        reply.header("set-cookie", limits.deviceCookie(body.email, secureAttribute(app.config.publicUrl)));
        return answer(201, await describeCaller(app, actor), {
          "set-cookie": cookie(secret, sessionSeconds, app.config.publicUrl),
        });
      },
    }),
    defineRoute({
      api: "platform",
      method: "GET",
      path: "/api/v1/session",
      operationId: "getSession",
      tag: "Session",
      summary: "Who is asking, and which workspaces they reach",
      scope: null,
      extension: true,
      responses: { 200: SessionResponse },
      handler: ({ actor }) => describeCaller(app, actor),
    }),
    defineRoute({
      api: "platform",
      method: "DELETE",
      path: "/api/v1/session",
      operationId: "signOut",
      tag: "Session",
      summary: "Sign out; a token is left alone",
      scope: null,
      extension: true,
      responses: { 204: null },
      handler: async ({ actor, request }) => {
        await signOut(app, actor, credentialOf(request.headers)?.secret ?? "");
        return answer(204, null, { "set-cookie": endedCookie(app.config.publicUrl) });
      },
    }),
    defineRoute({
      api: "platform",
      method: "PUT",
      path: "/api/v1/session/password",
      operationId: "changePassword",
      tag: "Session",
      summary: "Change the caller's password",
      description: "Ends all other sessions of the account. Tokens stay.",
      scope: null,
      extension: true,
      body: PasswordChange,
      responses: { 204: null },
      errors: [...fullAccessErrors, passwordWrong, signInLimited],
      handler: async ({ actor, body, request }) => {
        requireFullAccess(actor);
        limits.allowPassword(actor.userId);
        await changePassword(app, actor, {
          current: body.current_password,
          next: body.new_password,
          keptSession: sessionSecret(request.headers),
        });
      },
    }),
    defineRoute({
      api: "platform",
      method: "GET",
      path: "/api/v1/sessions",
      operationId: "listSessions",
      tag: "Session",
      summary: "Sessions of the caller, newest first",
      scope: null,
      extension: true,
      responses: { 200: z.array(SessionEntry) },
      errors: fullAccessErrors,
      handler: ({ actor, request }) => {
        requireFullAccess(actor);
        return listSessions(app, actor, sessionSecret(request.headers));
      },
    }),
    defineRoute({
      api: "platform",
      method: "DELETE",
      path: "/api/v1/sessions/{session_id}",
      operationId: "endSession",
      tag: "Session",
      summary: "End a session of the caller",
      scope: null,
      extension: true,
      params: z.object({ session_id: z.guid() }),
      responses: { 204: null },
      errors: [...fullAccessErrors, sessionNotFound],
      handler: ({ actor, params }) => {
        requireFullAccess(actor);
        return endSession(app, actor, params.session_id);
      },
    }),
  ];
};

/** Null when the credential is a token. */
function sessionSecret(headers: IncomingHttpHeaders): string | null {
  const credential = credentialOf(headers);
  return credential?.kind === "session" ? credential.secret : null;
}

/** `Secure` where the server is reached by https; on plain loopback a browser would drop such a cookie. */
