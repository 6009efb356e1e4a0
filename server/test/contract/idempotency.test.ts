/**
 * A request with an `Idempotency-Key` creates a resource once, even if the server dies between commit and response.
 * Each operation with a key is called once. Then the row of its key is reset to the state that a crash leaves, and the
 * retry has to find the resource of the first request.
 */
import { sql } from "kysely";
import { expect, test } from "vitest";
import type { Route } from "#http/define-route.ts";
import { endSandbox } from "#sandbox/sandboxes/lifecycle/terminate.ts";
import { agentCases } from "./cases/agent.ts";
import { agentTriggerCases } from "./cases/agent-triggers.ts";
import { backupCases } from "./cases/backups.ts";
import type { Call, Case } from "./cases/case.ts";
import { functionCases } from "./cases/functions.ts";
import { platformCases } from "./cases/platform.ts";
import { sandboxCases } from "./cases/sandbox.ts";
import { openWorld } from "./world.ts";

/** Operations that create no lasting resource: their command has ended, and its result was lost with the caller. */
const runners = ["execCommand", "invokeFunction", "runCode"];

const world = await openWorld();
const cases: Record<string, Case> = {
  ...platformCases,
  ...backupCases,
  ...functionCases,
  ...sandboxCases,
  ...agentCases,
  ...agentTriggerCases,
};
const keyed = Object.values(world.routes)
  .flat()
  .filter(({ idempotent }) => idempotent);
const making = keyed.filter(({ operationId }) => !runners.includes(operationId));

test("every operation with an Idempotency-Key records the created resource, unless it only runs code", () => {
  const without = keyed.filter(({ replay }) => !replay).map(({ operationId }) => operationId);
  expect(without.toSorted()).toEqual(runners);
});

function send(route: Route, call: Call, key: string) {
  const path = route.path.replaceAll(/\{(\w+)\}/g, (_, name: string) => call.params?.[name] ?? "");
  return world.call(route.method, call.query === undefined ? path : `${path}?${call.query}`, {
    token: world.owner.token,
    body: call.body,
    headers: { ...call.headers, "idempotency-key": key },
  });
}

/**
 * Resets the key's row to the state after a crash behind the commit: the request is running, and no process renews it.
 */
async function lose(key: string): Promise<void> {
  const { numUpdatedRows } = await world.app.db
    .updateTable("idempotency_keys")
    .set({
      state: "running",
      status: null,
      headers: null,
      body: null,
      process_id: crypto.randomUUID(),
      expires_at: new Date(0),
    })
    .where("key", "=", key)
    .executeTakeFirstOrThrow();
  expect(Number(numUpdatedRows)).toBe(1);
}

const deeds = async (action: string) =>
  (await world.app.db.selectFrom("activity").select("id").where("action", "=", action).execute()).length;

/** Bodies of resources that would otherwise have ended at the time of the retry. */
const lastingCalls: Record<string, Pick<Call, "body">> = {
  startCommand: { body: { command: "exec /bin/cat" } },
};

/** Fields that change only with time. */
const passing = new Set(["uptime_seconds", "updated_at"]);

function lasting(value: unknown, secrets: readonly string[]): unknown {
  return JSON.parse(
    JSON.stringify(value, (name, inner: unknown) => {
      if (passing.has(name)) return undefined;
      return secrets.includes(name) ? null : inner;
    }),
  );
}

test.each(making)(
  "$operationId: a retry after a crash returns the resource that the first request created",
  async (route) => {
    const call = { ...(await cases[route.operationId]!.success(world)), ...lastingCalls[route.operationId] };
    const key = crypto.randomUUID();
    const first = await send(route, call, key);
    expect(first.status, first.text).toBeLessThan(300);
    await lose(key);
    const deed = route.replay?.activity;
    const before = deed === undefined ? 0 : await deeds(deed);
    const again = await send(route, call, key);
    expect(again.headers["idempotent-replayed"], again.text).toBe("true");
    expect(again.status).toBe(first.status);
    expect(lasting(again.json, [])).toEqual(lasting(first.json, route.secretFields ?? []));
    if (deed !== undefined) expect([before > 0, await deeds(deed)]).toEqual([true, before]);
  },
);

test("a retry creates a new sandbox if the first one never started because the server died", async () => {
  const route = making.find(({ operationId }) => operationId === "createSandbox")!;
  const call = await cases["createSandbox"]!.success(world);
  const key = crypto.randomUUID();
  const { id } = (await send(route, call, key)).json as { id: string };
  await lose(key);
  await endSandbox(world.app, { id, reason: "start_failed" });
  const again = await send(route, call, key);
  expect([again.status, again.headers["idempotent-replayed"]]).toEqual([201, undefined]);
  const next = await send(route, call, key);
  expect([next.headers["idempotent-replayed"], next.json]).toEqual(["true", again.json]);
  expect((next.json as { id: string }).id).not.toBe(id);
});

test.each(["startCommand", "startPty", "createCodeContext"])(
  "%s: a retry starts the work that the crash prevented",
  async (operation) => {
    const route = making.find(({ operationId }) => operationId === operation)!;
    const call = await cases[operation]!.success(world);
    const key = crypto.randomUUID();
    await send(route, call, key);
    await lose(key);
    await sql`update idempotency_keys set made = '[{"id":"cmd_never"}]' where key = ${key}`.execute(
      world.app.db,
    );
    const again = await send(route, call, key);
    expect([again.status, again.headers["idempotent-replayed"]]).toEqual([201, undefined]);
  },
);

test("a retry returns 404 for a resource that was deleted before it, and does not create the resource again", async () => {
  const route = making.find(({ operationId }) => operationId === "createVolume")!;
  const call = await cases["createVolume"]!.success(world);
  const key = crypto.randomUUID();
  const { id } = (await send(route, call, key)).json as { id: string };
  await lose(key);
  await world.call("DELETE", `/v1/sandboxes/volumes/${id}`, { token: world.owner.token });
  const again = await send(route, call, key);
  expect([again.status, again.json]).toMatchObject([404, { code: "volume_not_found" }]);
});
