import { z } from "zod";
import { answer, defineRoute, type Route } from "#http/define-route.ts";
import type { App } from "../../app.ts";
import { fullAccessErrors, requireFullAccess } from "../full-access.ts";
import type { Holding } from "../holdings.ts";
import { signInLimited } from "../errors.ts";
import { endedCookie, SignInLimits } from "../sessions/sign-in-routes.ts";
import { accountNotEmpty, accountOwnsTeams, deleteOwnAccount, lastOperator } from "./delete-user.ts";
import { passwordWrong } from "./users.ts";

const AccountDelete = z
  .object({
    current_password: z
      .string()
      .min(1)
      .max(1024)
      .describe("Current password of the account, to confirm the deletion."),
  })
  .meta({ id: "AccountDelete" });

export const userRoutes = (
  app: Pick<App, "db" | "clock" | "config" | "secrets">,
  holdings: readonly Holding[],
): Route[] => {
  const limits = new SignInLimits(app);
  return [
    defineRoute({
      api: "platform",
      method: "POST",
      path: "/api/v1/account/delete",
      operationId: "deleteAccount",
      tag: "Session",
      summary: "Delete the caller's account",
      description:
        "Deletes the person, the personal workspace, and all sessions, tokens and invitations. Delete projects, " +
        "functions, sandboxes and other resources first: while any exists, the response is 409 " +
        "`account_not_empty` and names them. A team keeps its other owners. The audit log keeps the person's actions " +
        "without name and address. Requires a session or a token with full access.",
      scope: null,
      extension: true,
      whileSuspended: true,
      allowsViewers: true,
      body: AccountDelete,
      responses: { 204: null },
      errors: [
        ...fullAccessErrors,
        passwordWrong,
        signInLimited,
        accountNotEmpty,
        accountOwnsTeams,
        lastOperator,
      ],
      handler: async ({ actor, body }) => {
        requireFullAccess(actor);
        limits.allowPassword(actor.userId);
        await deleteOwnAccount(app, actor, { password: body.current_password, holdings });
        return answer(204, null, { "set-cookie": endedCookie(app.config.publicUrl) });
      },
    }),
  ];
};
