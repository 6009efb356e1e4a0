import { expect, test } from "vitest";
import { buildRequest } from "./request.ts";
import type { HttpTool } from "../tools/tool-schema.ts";

const toolset = { url: "https://api.example/v2", headers: { authorization: "Bearer s" } };
const tool = (change: Partial<HttpTool>): HttpTool => ({
  name: "t",
  description: "",
  method: "GET",
  path: "/things/{id}",
  parameters: { type: "object" },
  ...change,
});
const ask = (change: Partial<HttpTool>, values: Record<string, unknown>) => {
  const { method, url, body, headers } = buildRequest(tool(change), toolset, values);
  return [method, url.href, headers["content-type"], body];
};

test("puts arguments into the path, and all others into the query or the body", () => {
  expect(ask({}, { id: "a b/c", q: "x&y=1", tags: [1, "two"] })).toEqual([
    "GET",
    "https://api.example/v2/things/a%20b%2Fc?q=x%26y%3D1&tags=1&tags=two",
    undefined,
    undefined,
  ]);
  expect(ask({ method: "POST" }, { id: 7, deep: { a: [1] } })).toEqual([
    "POST",
    "https://api.example/v2/things/7",
    "application/json",
    '{"deep":{"a":[1]}}',
  ]);
  expect(ask({ method: "PUT", body: "form" }, { id: "x", a: "1 2", b: { c: 1 } })).toEqual([
    "PUT",
    "https://api.example/v2/things/x",
    "application/x-www-form-urlencoded",
    "a=1+2&b=%7B%22c%22%3A1%7D",
  ]);
});

test.each(["", ".", "..", undefined])(
  "refuses an argument that would change the request's target: %j",
  (id) => {
    expect(() => ask({}, { id })).toThrow("must not be empty, . or ..");
  },
);

test.each(["../../admin", "//evil.example/", "@evil.example", "?x=1#y", "\\..\\", "%2e%2e"])(
  "does not leave the tool's path for any argument: %s",
  (id) => {
    const [, href] = ask({}, { id });
    const url = new URL(String(href));
    expect([url.origin, url.search, url.hash]).toEqual(["https://api.example", "", ""]);
    expect(url.pathname.split("/")).toHaveLength(4);
    expect(url.pathname.startsWith("/v2/things/")).toBe(true);
  },
);

test("sends the toolset's own header if a tool has a header of the same name", () => {
  const { headers } = buildRequest(tool({ headers: { Authorization: "mine", "X-A": "1" } }), toolset, {
    id: 1,
  });
  expect(headers).toMatchObject({ authorization: "Bearer s", "x-a": "1" });
});
