import { expect, test } from "vitest";
import { createLog } from "./log.ts";

function capture(format: "json" | "pretty", log: (logger: ReturnType<typeof createLog>) => void): string {
  const lines: string[] = [];
  log(createLog({ level: "debug", format, write: (line) => lines.push(line) }));
  return lines.join("");
}

const canary = "c4nary-value";
const token = `svc_${"aB3".repeat(14)}`.slice(0, 44);

test.each(["json", "pretty"] as const)("redacts a secret from a %s line, wherever it occurs", (format) => {
  const failure = Object.assign(new Error(`refused ${token}`, { cause: { password: canary } }), {
    detail: `Key (token)=(${canary}) already exists.`,
    query: canary,
  });
  const text = capture(format, (log) => {
    log.info(
      { headers: { Authorization: `Bearer ${canary}`, cookie: canary, "set-cookie": [canary] } },
      "request",
    );
    log.info({
      body: { items: [{ env: { A: canary }, apiKey: canary, API_KEY: canary, "client-secret": canary }] },
    });
    log.warn(
      { url: `postgres://kontor:${canary}@db:5432/x` },
      `connect to https://me:${canary}@git.example/x`,
    );
    log.error({ error: failure }, `token ${token} and Bearer ${canary}`);
    log.error(failure);
    log.child({ password: canary }).info("child");
  });
  expect(text).not.toContain(canary);
  expect(text).not.toContain(token);
  expect(text).toContain("[redacted]");
});

test("keeps names, numbers, dates, and an error's type, code, stack and cause", () => {
  const cause = Object.assign(new TypeError("inner"), { code: "ECONNREFUSED" });
  const line = JSON.parse(
    capture("json", (log) =>
      log.error({ tokens: 12, at: new Date(0), none: null, error: new Error("outer", { cause }) }, "failed"),
    ),
  );
  expect(line).toMatchObject({
    level: "error",
    msg: "failed",
    tokens: 12,
    at: "1970-01-01T00:00:00.000Z",
    none: null,
    error: { type: "Error", message: "outer", cause: { type: "TypeError", code: "ECONNREFUSED" } },
  });
  expect(line.error.stack).toContain("log.test.ts");
});

test("cuts off a value that refers to itself", () => {
  const round: Record<string, unknown> = {};
  round["self"] = round;
  expect(capture("json", (log) => log.info(round, "x"))).toContain("[object]");
});
