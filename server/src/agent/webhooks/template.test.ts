import { describe, expect, test } from "vitest";
import { toTemplateInput } from "./template-input.ts";
import { renderTemplate, findTemplateFault } from "./template.ts";

const secret = "whsec_c2VjcmV0LW9mLWEtd2ViaG9vaw==";

function render(
  template: string,
  body: string,
  options: { headers?: Record<string, string>; query?: unknown; maxBytes?: number } = {},
): string | undefined {
  const delivery = { headers: options.headers ?? {}, query: options.query ?? {}, body: Buffer.from(body) };
  const webhook = { id: "agw_1", name: "forge" };
  const delivered = toTemplateInput(delivery, webhook, secret, new Date("2030-01-01T00:00:00Z"));
  return renderTemplate(template, delivered, { maxBytes: options.maxBytes ?? 2 ** 20, secret });
}

const issue = JSON.stringify({ issue: { title: 'a "b"', tags: ["x", { y: 1 }], none: null, n: 7 } });

test("inserts strings unchanged, other values as compact JSON, and nothing for missing values", () => {
  expect(render("{{body.issue.title}}", issue)).toBe('a "b"');
  expect(render("{{ body.issue.tags }} {{body.issue.tags.1.y}}", issue)).toBe('["x",{"y":1}] 1');
  expect(render("[{{body.issue.none}}|{{body.issue.absent.more}}|{{body.issue.n}}]", issue)).toBe(
    "[null||7]",
  );
  expect(render("{{body}}", issue)).toBe(issue);
  expect(render("{{webhook.id}} {{webhook.name}} {{received_at}}", "")).toBe(
    "agw_1 forge 2030-01-01T00:00:00.000Z",
  );
  expect(render("{{query.page}} {{query}}", "", { query: { page: "2" } })).toBe('2 {"page":"2"}');
});

test("parses a body as JSON, as a form, or as text", () => {
  expect(render("{{body.a}}", '{"a":"b"}', { headers: { "content-type": "text/plain" } })).toBe("b");
  const form = { "content-type": "application/x-www-form-urlencoded; charset=utf-8" };
  expect(render("{{body.a}} {{body.b}}", "a=1%202&b=x", { headers: form })).toBe("1 2 x");
  expect(render("{{body}}", "plain {{body}} text")).toBe("plain {{body}} text");
  expect(render("{{body}}", '"quoted"')).toBe("quoted");
  expect(render("{{body.id}} {{body}}", '{"id": 12345678901234567890}')).toBe(
    '12345678901234567890 {"id":12345678901234567890}',
  );
});

test("reads no inherited properties, and does not expand placeholders that a delivery contains", () => {
  expect(render("{{body.constructor.name}}{{body.__proto__}}{{body.toString}}", "{}")).toBe("");
  expect(render("{{body.__proto__.x}}", '{"__proto__": {"x": "own"}}')).toBe("own");
  expect(render("{{body.a}}", JSON.stringify({ a: "{{headers}} $& $1" }))).toBe("{{headers}} $& $1");
});

test("treats a body that is nested too deep for JSON as text", () => {
  const deep = "[".repeat(200_000) + "]".repeat(200_000);
  expect(render("{{body}}", deep)).toBe(deep);
});

test("stops rendering at the placeholder that exceeds the limit", () => {
  const maxBytes = 64 * 1024;
  expect(render("{{body}}!", "ä".repeat(maxBytes / 2 - 1), { maxBytes })).toHaveLength(maxBytes / 2);
  expect(render("{{body}}!", "ä".repeat(maxBytes / 2), { maxBytes })).toBeUndefined();
  let written = 0;
  const body = { toJSON: () => ((written += 1), "x".repeat(2 ** 20)) };
  const delivered = { body, headers: {}, query: {}, webhook: {}, received_at: "" };
  expect(renderTemplate("{{body}}".repeat(1024), delivered, { maxBytes, secret })).toBeUndefined();
  expect(written).toBe(1);
});

test("replaces the secret by …, even across two placeholders, and limits the length after the replacement", () => {
  const [begin, end] = [secret.slice(0, 9), secret.slice(9)];
  expect(render("{{body.a}}{{body.b}}", JSON.stringify({ a: begin, b: end }))).toBe("…");
  expect(render("{{body}} {{body}}", `${secret}x${secret}`, { maxBytes: 15 })).toBe("…x… …x…");
});

test("hides headers that authenticate or sign a request", () => {
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
  expect(render("{{headers}}", "", { headers })).toBe('{"x-github-event":"push"}');
  expect(render("{{headers.X-GitHub-Event}}{{headers.authorization}}", "", { headers })).toBe("push");
});

describe("a webhook's template", () => {
  test.each([
    "Hello",
    "{{body}}",
    "{{ headers.x-y }} and {{query.a}}",
    "{ {body} }",
    "{{",
    "}} {{body.a.0}}",
  ])("accepts %j", (template) => expect(findTemplateFault(template)).toBeUndefined());
  test.each([
    "{{}}",
    "{{env.HOME}}",
    "{{body..a}}",
    "{{#if body}}",
    "{{body | upper}}",
    "{{body.a b}}",
    "{{{body}}}",
  ])("rejects %j", (template) => expect(findTemplateFault(template)).toContain("is not a placeholder"));
  test.each(["{{body", "{{ body.a } and {{body.b}}", "{{body.a.b}"])(
    "rejects the unclosed placeholder in %j",
    (template) => expect(findTemplateFault(template)).toMatch(/is not (closed|a placeholder)/),
  );
});
