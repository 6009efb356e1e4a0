import type { IncomingHttpHeaders } from "node:http";
import { z } from "zod";
import { credentialOf } from "#http/credential.ts";
import { answer, defineRoute, type Route } from "#http/define-route.ts";
import { addressLimited } from "#http/errors.ts";
import type { App } from "../../app.ts";
import { scopes, teamRoles } from "../roles.ts";
import { fullAccessErrors, requireFullAccess } from "../full-access.ts";
import { changePassword, passwordWrong } from "../users/users.ts";
import { signInLimited } from "../errors.ts";
import {
  describeCaller,
  endSession,
  listSessions,
  recordRefusal,
  sessionNotFound,
  sessionSeconds,
  signIn,
  signInRefused,
  signOut,
} from "./sessions.ts";
import { cookie, endedCookie, secureAttribute, SignInLimits } from "./sign-in-routes.ts";

const SessionCreate = z
  .object({
    email: z.string().min(1).max(254).describe("E-mail address of the account. Case does not matter."),
    password: z.string().min(1).max(1024).describe("Password of the account."),
  })
  .meta({ id: "SessionCreate" });

const SessionResponse = z
  .object({
    user: z
      .object({
        id: z.guid().describe("Id (UUID) of the account."),
        email: z.string().describe("E-mail address of the account, in lower case."),
        name: z.string().describe("Display name of the person."),
        is_operator: z.boolean().describe("True if the person operates this installation."),
      })
      .describe("Person behind the session, token or agent."),
    kind: z
      .enum(["user", "api_token", "worker", "system"])
      .describe(
        "Kind of the caller. `user`: a session. `api_token`: a token. `worker`: an agent. `system` does not occur.",
      ),
    scopes: z
      .array(z.enum(scopes))
      .nullable()
      .describe("Scopes of the caller; a write scope includes reading. Null: full access."),
    workspaces: z
      .array(
        z.object({
          id: z.guid().describe("Id (UUID) of the workspace; for a team it is the team's id."),
          kind: z
            .enum(["personal", "team"])
            .describe("`personal`: the person's own workspace. `team`: shared by the members of a team."),
          name: z.string().describe("Name of the team, or of the person for the personal workspace."),
          role: z
            .enum(teamRoles)
            .describe("Role of the caller in the workspace. `owner` in the personal workspace."),
          plan: z
            .enum(["starter", "pro", "team"])
            .describe("Plan of the workspace, which sets its limits, such as the number of projects."),
          sandbox_tier: z
            .enum(["free", "payg", "enterprise"])
            .describe("Tier of the workspace, which sets its limits for sandboxes, such as their sizes."),
          suspended: z
            .boolean()
            .describe(
              "True while the operator suspends the workspace: nothing can be created or changed; deleting is allowed.",
            ),
        }),
      )
      .describe(
        "Workspaces that the caller reaches, the personal one first. A token bound to one workspace reaches only that one.",
      ),
  })
  .meta({ id: "SessionResponse" });

const PasswordChange = z
  .object({
    current_password: z
      .string()
      .min(1)
      .max(1024)
      .describe("Current password of the account, to confirm the change."),
    new_password: z.string().min(8).max(1024).describe("New password, 8 to 1024 characters."),
  })
  .meta({ id: "PasswordChange" });

const SessionEntry = z
  .object({
    id: z.guid().describe("Id (UUID) of the session."),
    created_at: z.iso.datetime().describe("Time of the sign-in."),
    last_seen_at: z.iso.datetime().describe("Time of the last request, exact to a minute."),
    expires_at: z.iso.datetime().describe("Time at which the session ends: 14 days after the sign-in."),
    ip: z.string().nullable().describe("IP address at the sign-in. Null if it is unknown."),
    user_agent: z
      .string()
      .nullable()
      .describe("`User-Agent` header at the sign-in, at most 256 characters. Null if none was sent."),
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
      summary: "Sign in",
      description: "Sets the session cookie, which is valid for 14 days.",
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
          if (limits.shouldRecordRefusal(ip))
            await recordRefusal(app, "session.limited", { email: body.email, ip });
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
      summary: "Get the current session",
      description:
        "Returns the caller, its scopes, and the workspaces that it reaches. Works with a token too.",
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
      summary: "Sign out",
      description: "Ends the session and clears its cookie. A token stays valid.",
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
      summary: "List the caller's sessions",
      description: "Returns the newest first.",
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
      summary: "End a session",
      scope: null,
      extension: true,
      params: z.object({ session_id: z.guid().describe("Id (UUID) of the session, as in the list.") }),
      responses: { 204: null },
      errors: [...fullAccessErrors, sessionNotFound],
      handler: ({ actor, params }) => {
        requireFullAccess(actor);
        return endSession(app, actor, params.session_id);
      },
    }),
  ];
};

/** Returns the secret of the request's session. Null if the request has no session. */
function sessionSecret(headers: IncomingHttpHeaders): string | null {
  const credential = credentialOf(headers);
  return credential?.kind === "session" ? credential.secret : null;
}

/** Adds `Secure` if the server is reached by https. On plain loopback, a browser would drop such a cookie. */
