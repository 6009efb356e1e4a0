import fc from "fast-check";
import { expect, test } from "vitest";
import { z } from "zod";
import { testDatabase } from "../../../test/harness.ts";
import { personWithTier, testHost } from "../testing/sandbox-app.ts";
import { list } from "./list.ts";
import { createdQuery } from "./schema.ts";

const { db } = await testDatabase();
const { app } = await testHost(db);
const mine = await personWithTier(db, "free");
const others = await personWithTier(db, "free");

/** Inserts rows like those of a create, without machines. */
async function insert(
  workspaceId: string,
  rows: { id: string; at: string; metadata?: object; ended?: boolean }[],
) {
  await db
    .insertInto("sandboxes")
    .values(
      rows.map(({ id, at, metadata = {}, ended }) => ({
        id,
        workspace_id: workspaceId,
        template: "debian-12",
        size: "small",
        cpu: 1,
        memory_mb: 1024,
        network: "off" as const,
        region: "eu-1",
        volume_id: null,
        status: ended ? ("terminated" as const) : ("running" as const),
        transition: null,
        termination_reason: ended ? ("requested" as const) : null,
        terminated_at: ended ? new Date(at) : null,
        on_timeout: "kill" as const,
        auto_resume: false,
        timeout_seconds: 600,
        expires_at: new Date("2031-01-01"),
        preview_token_sealed: null,
        allow_domains: null,
        metadata: JSON.stringify(metadata),
        running_since: null,
        created_at: at,
      })) as never,
    )
    .execute();
}

// Many rows share a microsecond, and some differ by less than a JavaScript Date can express.
const times = ["2030-01-01T00:00:00.000001Z", "2030-01-01T00:00:00.000002Z", "2030-01-01T00:00:00.000003Z"];
const rows = Array.from({ length: 23 }, (_, n) => ({
  id: `sbx_list${String((n * 7) % 23).padStart(2, "0")}`,
  at: times[n % times.length] ?? "",
  metadata: { third: String(n % 3), all: "yes", "odd key \"'%": "v", "we[i]rd &k": "=[]" },
  ended: n % 2 === 0,
}));
await insert(mine.workspace.id, rows);
await insert(others.workspace.id, [{ id: "sbx_others", at: times[1] ?? "", metadata: { all: "yes" } }]);
const newestFirst = rows
  .toSorted((a, b) => (a.at === b.at ? (a.id < b.id ? 1 : -1) : a.at < b.at ? 1 : -1))
  .map(({ id }) => id);

test("returns the whole list in pages of any size: newest first, without repetition or omission", async () => {
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 30 }), async (limit) => {
      const seen: string[] = [];
      let cursor: string | undefined;
      do {
        const page = await list(app, mine.actor, { limit, cursor });
        expect(page.items.length).toBeLessThanOrEqual(limit);
        seen.push(...page.items.map(({ id }) => id));
        cursor = page.next_cursor ?? undefined;
      } while (cursor !== undefined);
      expect(seen).toEqual(newestFirst);
    }),
    { numRuns: 12 },
  );
});

test("does not change later pages when a sandbox is created between two pages", async () => {
  const first = await list(app, mine.actor, { limit: 10 });
  await insert(mine.workspace.id, [{ id: "sbx_newer", at: "2030-02-01T00:00:00Z" }]);
  const second = await list(app, mine.actor, { limit: 13, cursor: first.next_cursor ?? undefined });
  await db.deleteFrom("sandboxes").where("id", "=", "sbx_newer").execute();
  expect([...first.items, ...second.items].map(({ id }) => id)).toEqual(newestFirst);
});

test("matches every metadata pair exactly, for any characters", async () => {
  const findIds = async (metadata: Record<string, string>) =>
    (await list(app, mine.actor, { limit: 100, metadata })).items.length;
  expect(await findIds({ third: "0" })).toBe(8);
  expect(await findIds({ third: "0", all: "yes" })).toBe(8);
  expect(await findIds({ third: "0", all: "no" })).toBe(0);
  expect(await findIds({ "odd key \"'%": "v" })).toBe(23);
  expect(await findIds({ "we[i]rd &k": "=[]" })).toBe(23);
  expect(await findIds({ "we[i]rd &k": "=[" })).toBe(0);
  expect(await findIds({ third: "" })).toBe(0);
  expect(await findIds({})).toBe(23);
});

test("returns only sandboxes with the requested status", async () => {
  expect((await list(app, mine.actor, { limit: 100, status: ["terminated"] })).items).toHaveLength(12);
  expect((await list(app, mine.actor, { limit: 100, status: ["running"] })).items).toHaveLength(11);
  expect((await list(app, mine.actor, { limit: 100, status: ["paused"] })).items).toEqual([]);
});

test("rejects a cursor that is invented, cut, or another caller's", async () => {
  const { next_cursor: cursor } = await list(app, mine.actor, { limit: 1 });
  for (const bad of ["x", "", cursor?.slice(0, -2) ?? "", `${cursor}aaaa`]) {
    await expect(list(app, mine.actor, { limit: 1, cursor: bad }), bad).rejects.toMatchObject({
      code: "invalid_request",
      message: expect.stringContaining("cursor"),
    });
  }
  await expect(list(app, others.actor, { limit: 1, cursor: cursor ?? "" })).rejects.toMatchObject({
    code: "invalid_request",
  });
});

test("hides sandboxes of other workspaces", async () => {
  const { items } = await list(app, others.actor, { limit: 100, metadata: { all: "yes" } });
  expect(items.map(({ id }) => id)).toEqual(["sbx_others"]);
});

test("lists pages from the oldest sandbox on, and refuses a cursor of the other order", async () => {
  const first = await list(app, mine.actor, { limit: 10, order: "oldest" });
  const cursor = first.next_cursor ?? "";
  const second = await list(app, mine.actor, { limit: 100, order: "oldest", cursor });
  expect([...first.items, ...second.items].map(({ id }) => id)).toEqual(newestFirst.toReversed());
  await expect(list(app, mine.actor, { limit: 10, cursor })).rejects.toMatchObject({
    code: "invalid_request",
  });
});

test("filters by time of creation, by several states and by template", async () => {
  const count = async (query: object) => (await list(app, mine.actor, { limit: 100, ...query })).items.length;
  expect(await count({ status: ["running", "terminated"] })).toBe(23);
  expect(await count({ template: "debian-12" })).toBe(23);
  expect(await count({ template: "debian" })).toBe(0);
  await insert(mine.workspace.id, [{ id: "sbx_later", at: "2030-03-01T12:00:00Z" }]);
  expect(await count({ created_after: "2030-03-01T13:00:00+01:00" })).toBe(1);
  expect(await count({ created_after: "2030-03-01T12:00:01Z" })).toBe(0);
  expect(await count({ created_before: "2030-03-01T12:00:00Z" })).toBe(23);
  await db.deleteFrom("sandboxes").where("id", "=", "sbx_later").execute();
});

test.for([
  ["1969-12-31T23:59:59Z", false],
  ["9999-12-31T23:59:59-10:00", false],
  ["2030-02-30T00:00:00Z", false],
  ["2030-01-01T00:00:00+23:59", true],
] as const)("accepts the time %s in a filter: %s", ([created_after, isTaken]) => {
  expect(z.strictObject(createdQuery).safeParse({ created_after }).success).toBe(isTaken);
});
