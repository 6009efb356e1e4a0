/**
 * What every operation of the three documents keeps, read from the documents themselves: it refuses a caller without
 * a token, one without the scope, a body it does not know, and it hides other people's things; it answers in its
 * schema; and none is without a case that shows it working.
 */
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { hasScope } from "#accounts/actor.ts";
import { scopes } from "#accounts/roles.ts";
import { cases } from "./cases/all.ts";
import type { Call } from "./cases/case.ts";
import documentedOperations from "./documented.json" with { type: "json" };
import { anyPath, isPublic, jsonBodyOf, type Operation, operationsOf } from "./operations.ts";
import { openWorld } from "./world.ts";

/** The operations of the three API documents. */
const documented: readonly {
  api: string;
  method: string;
  path: string;
  success?: number;
  scope?: string;
}[] = documentedOperations;

const world = await openWorld();

const operations = operationsOf(world.routes);
const takesJson = (operation: Operation): boolean => jsonBodyOf(operation) !== undefined;

function filled(operation: Operation, call: Call): string {
  const path = operation.path.replaceAll(/\{(\w+)\}/g, (_, name: string) =>
    encodeURIComponent(call.params?.[name] ?? `no-value-for-${name}`),
  );
  return call.query === undefined ? path : `${path}?${call.query}`;
}

const send = (operation: Operation, call: Call, token: string | null) =>
  world.call(operation.method, filled(operation, call), {
    token,
    body: call.body,
    ...(call.headers ? { headers: call.headers } : {}),
  });

test("every operation has a case that shows it working, and every case an operation", () => {
  expect(Object.keys(cases).toSorted()).toEqual(operations.map(({ id }) => id).toSorted());
});

test("every operation on a thing has a case that shows it hidden from others", () => {
  const open = operations.filter(
    (one) =>
      one.path.includes("{") && !isPublic(one) && !cases[one.id]?.unknown && !cases[one.id]?.isOwnerless,
  );
  expect(open.map(({ id }) => id)).toEqual([]);
});

test("what is not in the API documents is marked as an extension, what is there keeps its status and scope", () => {
  const found = new Map(documented.map((one) => [`${one.method} ${one.path}`, one]));
  const wrong = operations.filter(({ method, path, route }) => {
    const known = found.get(`${method} ${path}`);
    if (route.extension === true || known === undefined)
      return (known === undefined) !== (route.extension === true);
    const hasStatus = known.success === undefined || known.success in route.responses;
    // No token's matter: who delivers proves to know a secret.
    const scope = known.scope === "webhook secret" ? "public" : known.scope;
    return !hasStatus || (scope !== undefined && scope !== route.scope);
  });
  expect(wrong.map(({ id }) => id)).toEqual([]);
});

describe.each(operations)("$method $path", (operation) => {
  test.skipIf(isPublic(operation))("refuses a caller without a token", async () => {
    const { status, json } = await world.call(operation.method, anyPath(operation), { token: null });
    expect([status, json]).toMatchObject([401, { code: "unauthenticated" }]);
  });

  const scope = operation.document["x-kontor-scope"];
  test.skipIf(scope === undefined)("refuses a token without its scope", async () => {
    const others = scopes.filter((other) => !hasScope({ scopes: [other] }, scope!));
    const token = await world.tokenWith(others);
    const { status, json } = await world.call(operation.method, anyPath(operation), { token });
    expect([status, json]).toMatchObject([403, { code: "missing_scope", scope }]);
  });

  const refusal = operation.api === "platform" ? 422 : 400;

  test.skipIf(!takesJson(operation) || cases[operation.id]?.isFreeForm)(
    "refuses a body with a field it does not know, and names it",
    async () => {
      const token = isPublic(operation) ? null : world.owner.token;
      const body = { surely_no_field: true };
      const { status, text } = await world.call(operation.method, anyPath(operation), { token, body });
      expect(status).toBe(refusal);
      expect(text).toContain("surely_no_field");
    },
  );

  test.skipIf(isPublic(operation))("refuses a query it does not know, and names it", async () => {
    const path = `${anyPath(operation)}?surely_no_query=1`;
    const { status, text } = await world.call(operation.method, path, { token: world.owner.token });
    expect(status).toBe(refusal);
    expect(text).toContain("surely_no_query");
  });

  const known = cases[operation.id];

  test.skipIf(!known?.unknown)(
    "answers for somebody else's thing exactly as for one that is not there",
    async () => {
      const call = await known!.success(world);
      const [foreign, absent] = [
        await send(operation, call, world.stranger.token),
        await send(operation, { ...call, params: { ...call.params, ...known!.unknown } }, world.owner.token),
      ];
      expect([absent.status, foreign.status, foreign.json]).toEqual([404, 404, absent.json]);
    },
  );

  test.skipIf(!known)("works, and answers in its schema", async () => {
    const call = await known!.success(world);
    const reply = await send(operation, call, known!.isPublic ? null : world.owner.token);
    const declared = Object.keys(operation.route.responses).map(Number);
    expect(reply.status, reply.text).toBe(known!.status ?? (declared.includes(201) ? 201 : declared[0]));
    expect(reply.headers["x-request-id"]).toBeTruthy();
    const response = operation.route.responses[reply.status];
    if (response === null) expect(reply.text).toBe("");
    else if (response instanceof z.ZodType) expect(response.safeParse(reply.json).error).toBeUndefined();
    else expect(reply.headers["content-type"]).toContain(response!.contentType);
  });
});
