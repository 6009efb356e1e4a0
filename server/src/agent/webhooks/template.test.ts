import { describe, expect, test } from "vitest";
import { deliveredOf } from "./delivered.ts";
import { fill, whyNotTemplate } from "./template.ts";

const secret = "whsec_c2VjcmV0LW9mLWEtd2ViaG9vaw==";

function told(
  template: string,
  body: string,
  options: { headers?: Record<string, string>; query?: unknown; maxBytes?: number } = {},
): string | undefined {
  const delivery = { headers: options.headers ?? {}, query: options.query ?? {}, body: Buffer.from(body) };
  const webhook = { id: "agw_1", name: "forge" };
  const delivered = deliveredOf(delivery, webhook, secret, new Date("2030-01-01T00:00:00Z"));
  return fill(template, delivered, { maxBytes: options.maxBytes ?? 2 ** 20, secret });
}

const issue = JSON.stringify({ issue: { title: 'a "b"', tags: ["x", { y: 1 }], none: null, n: 7 } });

test("strings stand there as they are, all else as compact JSON, what is missing as nothing", () => {
  expect(told("{{body.issue.title}}", issue)).toBe('a "b"');
  expect(told("{{ body.issue.tags }} {{body.issue.tags.1.y}}", issue)).toBe('["x",{"y":1}] 1');
  expect(told("[{{body.issue.none}}|{{body.issue.absent.more}}|{{body.issue.n}}]", issue)).toBe("[null||7]");
  expect(told("{{body}}", issue)).toBe(issue);
  expect(told("{{webhook.id}} {{webhook.name}} {{received_at}}", "")).toBe(
    "agw_1 forge 2030-01-01T00:00:00.000Z",
  );
  expect(told("{{query.page}} {{query}}", "", { query: { page: "2" } })).toBe('2 {"page":"2"}');
});

test("a body is JSON where it is JSON, a form's fields, or its text", () => {
  expect(told("{{body.a}}", '{"a":"b"}', { headers: { "content-type": "text/plain" } })).toBe("b");
  const form = { "content-type": "application/x-www-form-urlencoded; charset=utf-8" };
  expect(told("{{body.a}} {{body.b}}", "a=1%202&b=x", { headers: form })).toBe("1 2 x");
  expect(told("{{body}}", "plain {{body}} text")).toBe("plain {{body}} text");
  expect(told("{{body}}", '"quoted"')).toBe("quoted");
  expect(told("{{body.id}} {{body}}", '{"id": 12345678901234567890}')).toBe(
    '12345678901234567890 {"id":12345678901234567890}',
  );
});

test("nothing is read from what objects have by themselves, and what comes is no template", () => {
  expect(told("{{body.constructor.name}}{{body.__proto__}}{{body.toString}}", "{}")).toBe("");
  expect(told("{{body.__proto__.x}}", '{"__proto__": {"x": "own"}}')).toBe("own");
  expect(told("{{body.a}}", JSON.stringify({ a: "{{headers}} $& $1" }))).toBe("{{headers}} $& $1");
});

test("a body that is too deep to be written is a text", () => {
  const deep = "[".repeat(200_000) + "]".repeat(200_000);
  expect(told("{{body}}", deep)).toBe(deep);
});

test("what would be too long is given up at the place that does not fit", () => {
  const maxBytes = 64 * 1024;
  expect(told("{{body}}!", "ä".repeat(maxBytes / 2 - 1), { maxBytes })).toHaveLength(maxBytes / 2);
  expect(told("{{body}}!", "ä".repeat(maxBytes / 2), { maxBytes })).toBeUndefined();
  let written = 0;
  const body = { toJSON: () => ((written += 1), "x".repeat(2 ** 20)) };
  const delivered = { body, headers: {}, query: {}, webhook: {}, received_at: "" };
  expect(fill("{{body}}".repeat(1024), delivered, { maxBytes, secret })).toBeUndefined();
  expect(written).toBe(1);
});

test("a secret is shown in no place, nor put together by two, and what hides it counts", () => {
  const [begin, end] = [secret.slice(0, 9), secret.slice(9)];
  expect(told("{{body.a}}{{body.b}}", JSON.stringify({ a: begin, b: end }))).toBe("…");
  expect(told("{{body}} {{body}}", `${secret}x${secret}`, { maxBytes: 15 })).toBe("…x… …x…");
});

test("what lets somebody in, or proves something, is no header that a template sees", () => {
  const headers = {
    "x-github-event": "push",
    authorization: `Bearer ${secret}`,
    cookie: "a=b",
    "x-hub-signature-256": "sha256=0",
    "x-service-signature": "sha256=0",
    "webhook-signature": "v1,x",
    "x-gitlab-token": "t",
    "x-api-key": "k",
    "x-odd": `with ${secret} in it`,
  };
  expect(told("{{headers}}", "", { headers })).toBe('{"x-github-event":"push"}');
  expect(told("{{headers.X-GitHub-Event}}{{headers.authorization}}", "", { headers })).toBe("push");
});

describe("a template is judged when it is set", () => {
  test.each([
    "Hello",
    "{{body}}",
    "{{ headers.x-y }} and {{query.a}}",
    "{ {body} }",
    "{{",
    "}} {{body.a.0}}",
  ])("%j does", (template) => expect(whyNotTemplate(template)).toBeUndefined());
  test.each([
    "{{}}",
    "{{env.HOME}}",
    "{{body..a}}",
    "{{#if body}}",
    "{{body | upper}}",
    "{{body.a b}}",
    "{{{body}}}",
  ])("%j does not", (template) => expect(whyNotTemplate(template)).toContain("is no place"));
  test.each(["{{body", "{{ body.a } and {{body.b}}", "{{body.a.b}"])(
    "%j does not: it is not closed",
    (template) => expect(whyNotTemplate(template)).toMatch(/is (not closed|no place)/),
  );
});
