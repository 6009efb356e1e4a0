/** Contexts as resources of their machine: create, list, restart and delete. */
import type { Actor } from "#accounts/actor.ts";
import { newId } from "#lib/ids.ts";
import type { InsideNeeds } from "../sandboxes/sandboxes.ts";
import { interpreting } from "./code.ts";
import { contextNotFound, interpreterFailed } from "./errors.ts";
import { type Ask, ask } from "./interpreter.ts";
import type { CodeContext, ContextCreate } from "./schema.ts";

type Needs = InsideNeeds;

/** Creates a context; its kernel runs on return. `begins` receives the id before the kernel starts. */
export async function createContext(
  app: Needs,
  actor: Actor,
  id: string,
  input: ContextCreate,
  begins: (context: string) => Promise<void> = async () => {},
): Promise<CodeContext> {
  const context = newId("ctx_");
  await begins(context);
  return one(app, actor, id, { op: "create_context", id: context, ...input });
}

/** Finds a context whose creation began; undefined if the machine never received the request. */
export async function findBegun(
  app: Needs,
  actor: Actor,
  id: string,
  context: string,
): Promise<CodeContext | undefined> {
  return (await listContexts(app, actor, id)).items.find((one) => one.id === context);
}

export async function listContexts(app: Needs, actor: Actor, id: string): Promise<{ items: CodeContext[] }> {
  const items = await interpreting(app, actor, id, {}, (guest, service) =>
    ask(guest, service, { op: "list_contexts" }),
  );
  return { items };
}

/** Restarts the kernel under the same id: running cells end, and waiting cells run in the new kernel. */
export async function restartContext(
  app: Needs,
  actor: Actor,
  id: string,
  context: string,
): Promise<CodeContext> {
  return one(app, actor, id, { op: "restart_context", id: parseContextId(context) });
}

export async function deleteContext(
  app: Needs,
  actor: Actor,
  id: string,
  context: string,
): Promise<CodeContext> {
  return one(app, actor, id, { op: "delete_context", id: parseContextId(context) });
}

async function one(app: Needs, actor: Actor, id: string, request: Ask): Promise<CodeContext> {
  const asked = request.op === "create_context" ? request : {};
  const [context] = await interpreting(app, actor, id, asked, (guest, service) =>
    ask(guest, service, request),
  );
  if (!context) throw interpreterFailed(new Error("no context in the answer"));
  return context;
}

/** Rejects a text that cannot be the id of a context. */
function parseContextId(context: string): string {
  if (!/^(ctx_[a-z0-9]{1,40}|default(-[a-z]+)?)$/.test(context)) throw contextNotFound();
  return context;
}
