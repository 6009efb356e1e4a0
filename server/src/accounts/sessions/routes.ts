import { z } from "zod";
import { credentialOf, sessionCookie } from "#http/credential.ts";
import { answer, defineRoute, type Route } from "#http/define-route.ts";
import { addressLimited } from "#http/errors.ts";
import { RateLimiter } from "#http/rate-limit.ts";
import { addressHolder } from "#http/rate-rules.ts";
import type { App } from "../../app.ts";
import { scopes } from "../actor.ts";
import { signInLimited } from "../errors.ts";
import { describeCaller, sessionSeconds, signIn, signInRefused, signOut } from "./sessions.ts";

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
        role: z.enum(["owner", "admin", "member"]),
        plan: z.enum(["starter", "pro", "team"]),
        sandbox_tier: z.enum(["free", "payg", "enterprise"]),
        suspended: z.boolean(),
      }),
    ),
  })
  .meta({ id: "SessionResponse" });

/** Guesses at one account, and from one address: a person mistypes a few times, a dictionary needs thousands. */
const perAccount = { name: "sign-in of an account", perMinute: 5, burst: 10 };
const perAddress = { name: "sign-in from an address", perMinute: 20, burst: 40 };

export const sessionRoutes = (app: Pick<App, "db" | "clock" | "log" | "config">): Route[] => {
  const limiter = new RateLimiter(app.clock);
  const allowSignIn = (email: string, ip: string): void => {
    // The address first: one that is refused makes no bucket for each account it names.
    const address = limiter.take(addressHolder(ip), perAddress);
    if (!address.isAllowed) throw addressLimited(address.retryAfterSeconds);
    const account = limiter.take(email.toLowerCase(), perAccount);
    if (!account.isAllowed) throw signInLimited(account.retryAfterSeconds);
  };
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
      handler: async ({ body, request }) => {
        allowSignIn(body.email, request.ip);
        const userAgent = request.headers["user-agent"] ?? null;
        const { secret, actor } = await signIn(app, { ...body, ip: request.ip, userAgent });
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
        return answer(204, null, { "set-cookie": cookie("", 0, app.config.publicUrl) });
      },
    }),
  ];
};

/** `Secure` where the server is reached by https; on plain loopback a browser would drop such a cookie. */
function cookie(secret: string, maxAgeSeconds: number, publicUrl: string | null): string {
  const secure = publicUrl?.startsWith("https:") ? "; Secure" : "";
  return `${sessionCookie}=${secret}; Path=/; Max-Age=${maxAgeSeconds}; HttpOnly; SameSite=Lax${secure}`;
}
