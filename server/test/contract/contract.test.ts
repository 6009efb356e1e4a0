/**
 * Checks every operation against its API document. An operation refuses a caller without a token or without the scope,
 * and an unknown field in the body or the query. It hides other owners' resources, and its response matches its schema.
 * Every operation has a case that shows a success.
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

function fillPath(operation: Operation, call: Call): string {
  const path = operation.path.replaceAll(/\{(\w+)\}/g, (_, name: string) =>
    encodeURIComponent(call.params?.[name] ?? `no-value-for-${name}`),
  );
  return call.query === undefined ? path : `${path}?${call.query}`;
}

const send = (operation: Operation, call: Call, token: string | null) =>
  world.call(operation.method, fillPath(operation, call), {
    token,
    body: call.body,
    ...(call.headers ? { headers: call.headers } : {}),
  });

test("every operation has a case, and every case an operation", () => {
  expect(Object.keys(cases).toSorted()).toEqual(operations.map(({ id }) => id).toSorted());
});

test("every operation on a resource has a case for a resource of another owner", () => {
  const open = operations.filter(
    (one) =>
      one.path.includes("{") && !isPublic(one) && !cases[one.id]?.unknown && !cases[one.id]?.isOwnerless,
  );
  expect(open.map(({ id }) => id)).toEqual([]);
});

test("marks routes that the API documents lack as extensions, and keeps the documented status and scope", () => {
  const found = new Map(documented.map((one) => [`${one.method} ${one.path}`, one]));
  const wrong = operations.filter(({ method, path, route }) => {
    const known = found.get(`${method} ${path}`);
    if (route.extension === true || known === undefined)
      return (known === undefined) !== (route.extension === true);
    const hasStatus = known.success === undefined || known.success in route.responses;
    // The sender of a webhook proves that it knows the secret, and needs no token.
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
  test.skipIf(scope === undefined)("refuses a token without the scope of the operation", async () => {
    const others = scopes.filter((other) => !hasScope({ scopes: [other] }, scope!));
    const token = await world.tokenWith(others);
    const { status, json } = await world.call(operation.method, anyPath(operation), { token });
    expect([status, json]).toMatchObject([403, { code: "missing_scope", scope }]);
  });

  const refusal = operation.api === "platform" ? 422 : 400;

  test.skipIf(!takesJson(operation) || cases[operation.id]?.isFreeForm)(
    "names an unknown field of the body in the error",
    async () => {
      const token = isPublic(operation) ? null : world.owner.token;
      const body = { surely_no_field: true };
      const { status, text } = await world.call(operation.method, anyPath(operation), { token, body });
      expect(status).toBe(refusal);
      expect(text).toContain("surely_no_field");
    },
  );

  test.skipIf(isPublic(operation))("names an unknown query parameter in the error", async () => {
    const path = `${anyPath(operation)}?surely_no_query=1`;
    const { status, text } = await world.call(operation.method, path, { token: world.owner.token });
    expect(status).toBe(refusal);
    expect(text).toContain("surely_no_query");
  });

  const known = cases[operation.id];

  test.skipIf(!known?.unknown)(
    "responds to another owner's resource exactly as to a missing resource",
    async () => {
      const call = await known!.success(world);
      const [foreign, absent] = [
        await send(operation, call, world.stranger.token),
        await send(operation, { ...call, params: { ...call.params, ...known!.unknown } }, world.owner.token),
      ];
      expect([absent.status, foreign.status, foreign.json]).toEqual([404, 404, absent.json]);
    },
  );

  test.skipIf(!known)("succeeds with a response that matches its schema", async () => {
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
