/**
 * No body causes a server error. In each operation's successful body, random JSON replaces one value, or the whole
 * body.
 */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { agentCases } from "./cases/agent.ts";
import { agentMemoryCases } from "./cases/agent-memory.ts";
import { agentApprovalCases } from "./cases/agent-approvals.ts";
import { agentTriggerCases } from "./cases/agent-triggers.ts";
import { backupCases } from "./cases/backups.ts";
import { functionCases } from "./cases/functions.ts";
import { platformCases } from "./cases/platform.ts";
import { sandboxCases } from "./cases/sandbox.ts";
import { openWorld } from "./world.ts";

const world = await openWorld();
const cases = {
  ...platformCases,
  ...backupCases,
  ...functionCases,
  ...sandboxCases,
  ...agentCases,
  ...agentMemoryCases,
  ...agentApprovalCases,
  ...agentTriggerCases,
};

const strange = fc.oneof(
  fc.jsonValue({ maxDepth: 3 }),
  fc.constantFrom(
    "\u0000",
    "a\u0000b",
    "\ud800",
    "__proto__",
    "../../etc/passwd",
    "",
    -1,
    1e308,
    2 ** 53,
    [],
    {},
  ),
  fc.string({ unit: "binary" }),
);

const same = (a: unknown, b: unknown, field: string): boolean =>
  JSON.stringify((a as Record<string, unknown>)[field]) ===
  JSON.stringify((b as Record<string, unknown>)[field]);

const taking = Object.values(world.routes)
  .flat()
  .filter(({ body }) => body !== undefined);

describe.each(taking)("$method $path", (route) => {
  test("responds to a random body with a refusal or a success", async () => {
    const known = cases[route.operationId];
    const call = (await known?.success(world)) ?? {};
    const path = route.path.replaceAll(/\{(\w+)\}/g, (_, name: string) =>
      encodeURIComponent(call.params?.[name] ?? "x"),
    );
    const fields = Object.keys((call.body ?? {}) as object).filter((field) => !known?.keeps?.includes(field));
    const bodies = fc.oneof(
      strange,
      fc
        .record({ field: fc.constantFrom(...fields, "other"), value: strange })
        .map(({ field, value }) => ({ ...(call.body as object), [field]: value })),
    );
    await fc.assert(
      fc.asyncProperty(bodies, async (body) => {
        for (const field of known?.keeps ?? [])
          fc.pre(!(field in Object(body)) || same(body, call.body, field));
        const token = known?.isPublic ? null : world.owner.token;
        const { status, text } = await world.callRaw(route.method, path, {
          token,
          payload: JSON.stringify(body),
        });
        expect(status, text).not.toBe(500);
      }),
      { numRuns: 40 },
    );
  });
});
