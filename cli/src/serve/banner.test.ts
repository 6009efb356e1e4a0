import { expect, test } from "vitest";
import { banner } from "./banner.ts";

const operator = {
  base_url: "http://127.0.0.1:8080",
  email: "o@k.local",
  password: "pass-word",
  token: "svc_secret",
};
const facts = {
  data: "/data",
  baseUrl: operator.base_url,
  operator,
  log: "/data/logs/server.log",
  caFile: null,
};

test("shows the password and the token at the first start", () => {
  const text = banner({ ...facts, firstStart: true });
  expect(text).toContain("pass-word");
  expect(text).toContain("Bearer svc_secret");
});

test("shows the path of the credentials, and no secret, at a later start", () => {
  const text = banner({ ...facts, firstStart: false });
  expect(text).not.toContain("pass-word");
  expect(text).not.toContain("svc_secret");
  expect(text).toContain("/data/operator.json");
});

test("names the certificate authority that browsers must trust, and its file", () => {
  expect(banner({ ...facts, firstStart: true })).not.toContain("HTTPS");
  expect(banner({ ...facts, firstStart: true, caFile: "/data/ca.crt" })).toContain("--cacert /data/ca.crt");
});
