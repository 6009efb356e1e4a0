import { expect, test } from "vitest";
import { z } from "zod";
import { compilePick } from "./pick-declared.ts";

test("drops undeclared fields at any depth", () => {
  const pick = compilePick(
    z.object({
      a: z.string(),
      list: z.array(z.object({ b: z.int().nullable() })),
      map: z.record(z.string(), z.object({ c: z.boolean() })).optional(),
      maybe: z.object({ d: z.string() }).nullable(),
      open: z.looseObject({}),
    }),
  );
  const out = pick({
    a: "x",
    secret: 1,
    list: [{ b: null, secret: 1 }],
    map: { k: { c: true, secret: 1 } },
    maybe: null,
    open: { anything: 1 },
  });
  expect(out).toEqual({
    a: "x",
    list: [{ b: null }],
    map: { k: { c: true } },
    maybe: null,
    open: { anything: 1 },
  });
});

test("keeps the fields of the union option that the discriminator names", () => {
  const file = z.object({ is_dir: z.literal(false), content: z.string() });
  const folder = z.object({ is_dir: z.literal(true), entries: z.array(z.object({ name: z.string() })) });
  const pick = compilePick(z.discriminatedUnion("is_dir", [file, folder]));
  expect(pick({ is_dir: true, entries: [{ name: "a", inode: 3 }], content: "no" })).toEqual({
    is_dir: true,
    entries: [{ name: "a" }],
  });
  expect(() => pick({ is_dir: "neither" })).toThrow("no option");
});

test("keeps the first option that fits a plain union, and leaves values that are not objects unchanged", () => {
  const pick = compilePick(z.union([z.string(), z.object({ a: z.int() }), z.object({ b: z.int() })]));
  expect(pick("text")).toBe("text");
  expect(pick({ b: 1, c: 2 })).toEqual({ b: 1 });
});

test("compiles a schema that contains itself", () => {
  interface Tree {
    name: string;
    children: Tree[];
  }
  const Node: z.ZodType<Tree> = z.object({
    name: z.string(),
    get children() {
      return z.array(Node);
    },
  });
  const tree = { name: "a", extra: 1, children: [{ name: "b", extra: 1, children: [] }] };
  expect(compilePick(Node)(tree)).toEqual({ name: "a", children: [{ name: "b", children: [] }] });
});
