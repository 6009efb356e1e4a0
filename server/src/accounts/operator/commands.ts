/**
 * Commands of an operator on the host, which ignore plans and roles. Each command is a row that calls a function of
 * accounts. The log names "operator command" as the actor, because root of the host needs no account.
 */
import type { App } from "../../app.ts";
import { systemActor } from "../activity/activity.ts";
import { type Plan, type SandboxTier, teamRoles } from "../roles.ts";
import type { Holding } from "../holdings.ts";
import { randomPassword } from "../passwords.ts";
import { plans, sandboxTiers } from "../plans.ts";
import { addMemberBeyondPlan, createTeamFor, listAllTeams, removeMemberOf } from "../teams/teams.ts";
import { deleteUserByEmail } from "../users/delete-user.ts";
import { createUser, listUsers, resetPassword } from "../users/users.ts";
import { setPlan, setSuspended } from "../workspaces.ts";
import { requireTeam, requireUser, requireWorkspaceOf } from "./find.ts";

interface OperatorApp extends Pick<App, "db" | "clock"> {
  /** Resources that block the deletion of an account. */
  holdings: readonly Holding[];
}
type Options = Readonly<Record<string, string | boolean | undefined>>;

export interface Command {
  usage: string;
  /** Number of arguments after the command's name. */
  words: number;
  options: Readonly<Record<string, "text" | "flag">>;
  run: (app: OperatorApp, words: readonly string[], options: Options) => Promise<unknown>;
}

/** Error for invalid arguments of a command. */
export class UsageError extends Error {}

const actor = systemActor("operator command");

export const commands: Readonly<Record<string, Command>> = {
  "user create": {
    usage: "user create <email> [--name NAME] [--password-stdin] [--plan PLAN] [--tier TIER] [--operator]",
    words: 1,
    options: { name: "text", "password-stdin": "flag", plan: "text", tier: "text", operator: "flag" },
    run: async (app, [email], options) => {
      const { given, password } = await passwordFrom(options);
      const made = await createUser(app, actor, {
        email: parseEmail(email!),
        name: text(options.name) ?? email!.split("@")[0]!,
        password,
        isOperator: options.operator === true,
        plan: planFrom(options) ?? "starter",
        sandboxTier: tierFrom(options) ?? "free",
      });
      return { id: made.userId, email: email!.toLowerCase(), ...(given ? {} : { password }) };
    },
  },
  "user list": { usage: "user list", words: 0, options: {}, run: (app) => listUsers(app) },
  "user reset-password": {
    usage: "user reset-password <email> [--password-stdin] [--keep-tokens]",
    words: 1,
    options: { "password-stdin": "flag", "keep-tokens": "flag" },
    run: async (app, [email], options) => {
      const { given, password } = await passwordFrom(options);
      await resetPassword(app, actor, email!, password, { keepTokens: options["keep-tokens"] === true });
      return { email: email!.toLowerCase(), ...(given ? {} : { password }) };
    },
  },
  "user delete": {
    usage: "user delete <email>",
    words: 1,
    options: {},
    run: async (app, [email]) => {
      await deleteUserByEmail(app, actor, { email: email!, holdings: app.holdings });
      return { email: email!.toLowerCase(), deleted: true };
    },
  },
  "team create": {
    usage: "team create <name> --owner <email> [--plan PLAN] [--tier TIER]",
    words: 1,
    options: { owner: "text", plan: "text", tier: "text" },
    run: async (app, [name], options) => {
      const owner = await requireUser(app.db, requireOption(options, "owner"));
      const plan = planFrom(options) ?? "team";
      const sandboxTier = tierFrom(options) ?? "free";
      const team = await createTeamFor(app, actor, { name: name!, ownerId: owner.id, plan, sandboxTier });
      return { id: team.id, name: team.name, owner: owner.email, plan, sandbox_tier: sandboxTier };
    },
  },
  "team list": {
    usage: "team list",
    words: 0,
    options: {},
    run: async ({ db }) =>
      (await listAllTeams({ db })).map(({ suspended_at, created_at, role: _role, ...team }) => ({
        ...team,
        suspended: suspended_at !== null,
        created_at: created_at.toISOString(),
      })),
  },
  "team add-member": {
    usage: "team add-member <team> <email> [--role owner|admin|member|viewer]",
    words: 2,
    options: { role: "text" },
    run: async (app, [name, email], options) => {
      const team = await requireTeam(app.db, name!);
      const role = oneOf("role", teamRoles, options.role) ?? "member";
      await addMemberBeyondPlan(app, actor, team.id, { email: email!, role });
      return { team: team.name, email: email!.toLowerCase(), role };
    },
  },
  "team remove-member": {
    usage: "team remove-member <team> <email>",
    words: 2,
    options: {},
    run: async (app, [name, email]) => {
      const team = await requireTeam(app.db, name!);
      const user = await requireUser(app.db, email!);
      await removeMemberOf(app, actor, team.id, user.id);
      return { team: team.name, email: user.email };
    },
  },
  "plan set": {
    usage: "plan set <email|team> [--plan starter|pro|team] [--tier free|payg|enterprise]",
    words: 1,
    options: { plan: "text", tier: "text" },
    run: async (app, [whose], options) => {
      const workspace = await requireWorkspaceOf(app.db, whose!);
      const plan = planFrom(options);
      const sandboxTier = tierFrom(options);
      if (plan === undefined && sandboxTier === undefined)
        throw new UsageError("give --plan, --tier or both");
      await setPlan(app, actor, workspace.id, {
        ...(plan === undefined ? {} : { plan }),
        ...(sandboxTier === undefined ? {} : { sandboxTier }),
      });
      return {
        whose: workspace.label,
        ...(plan && { plan }),
        ...(sandboxTier && { sandbox_tier: sandboxTier }),
      };
    },
  },
  suspend: {
    usage: "suspend <email|team>",
    words: 1,
    options: {},
    run: (app, [whose]) => suspend(app, whose!, true),
  },
  unsuspend: {
    usage: "unsuspend <email|team>",
    words: 1,
    options: {},
    run: (app, [whose]) => suspend(app, whose!, false),
  },
};

async function suspend(app: OperatorApp, whose: string, suspended: boolean): Promise<object> {
  const workspace = await requireWorkspaceOf(app.db, whose);
  await setSuspended(app, actor, workspace.id, suspended);
  return { whose: workspace.label, suspended };
}

const text = (value: string | boolean | undefined): string | undefined =>
  typeof value === "string" ? value : undefined;

function requireOption(options: Options, name: string): string {
  const value = text(options[name]);
  if (value === undefined) throw new UsageError(`--${name} is missing`);
  return value;
}

function oneOf<const T extends string>(
  name: string,
  values: readonly T[],
  value: string | boolean | undefined,
): T | undefined {
  if (value === undefined) return undefined;
  const known = values.find((one) => one === value);
  if (known === undefined) throw new UsageError(`--${name} must be one of ${values.join(", ")}`);
  return known;
}

const planFrom = ({ plan }: Options): Plan | undefined => oneOf("plan", plans, plan);
const tierFrom = ({ tier }: Options): SandboxTier | undefined => oneOf("tier", sandboxTiers, tier);

function parseEmail(email: string): string {
  if (!/^[^@\s]+@[^@\s]+$/.test(email) || email.length > 254)
    throw new UsageError(`${email} is not an e-mail address`);
  return email;
}

/**
 * Reads the password from standard input if requested, so that no process list shows it. Otherwise generates a password
 * to show once.
 */
async function passwordFrom(options: Options): Promise<{ given: boolean; password: string }> {
  if (options["password-stdin"] !== true) return { given: false, password: randomPassword() };
  const chunks: Buffer[] = [];
  for await (const chunk of process.stdin) chunks.push(chunk as Buffer);
  const password = Buffer.concat(chunks)
    .toString("utf8")
    .replace(/\r?\n$/, "");
  if (password.length < 8) throw new UsageError("the password needs at least 8 characters");
  return { given: true, password };
}
