import type { Schema } from "@cfworker/json-schema";
import { expect, test } from "vitest";
import { refusalsOf } from "#examples/check.ts";
import { completeValue, stable } from "./examples.ts";
import type { Operation } from "./operations.ts";
import type { Caller } from "./world.ts";

const owner: Caller = {
  userId: "0a0a0a0a-0000-4000-8000-000000000001",
  email: "0123456789ab@example.test",
  workspaceId: "0a0a0a0a-0000-4000-8000-000000000002",
  token: "",
};

function record(projectId: string, secret: string, at: Date) {
  const operation = { path: "/api/v1/projects/{project_id}/deployments" } as Operation;
  const body = {
    id: crypto.randomUUID(),
    project_id: projectId,
    sandbox: `sbx_${"abcde".repeat(4)}`,
    secret,
    url: "http://127.0.0.1:8080/api/v1/projects",
    by: owner.email,
    created_at: at.toISOString(),
    expires_at: new Date(at.getTime() + 60_012).toISOString(),
  };
  const raw = { parameters: { project_id: projectId }, responses: { 201: body } };
  return stable(raw, { operation, owner, call: { params: { project_id: projectId } } });
}

test("records equal examples for two resources that differ only in ids, secrets and times", () => {
  const first = record(crypto.randomUUID(), `svc_${"x".repeat(40)}`, new Date());
  expect(record(crypto.randomUUID(), `svc_${"y".repeat(40)}`, new Date(Date.now() + 1234))).toEqual(first);
  expect(first.responses["201"]).toMatchObject({
    project_id: first.parameters!["project_id"],
    secret: expect.stringContaining("EXAMPLE"),
    url: "https://kontor.example.com/api/v1/projects",
    by: "ada@example.com",
    created_at: "2026-11-02T09:30:00.000Z",
    expires_at: "2026-11-02T09:31:00.000Z",
  });
});

test("keeps at most two items of a recorded list", () => {
  const operation = { path: "/v1/volumes" } as Operation;
  const raw = { responses: { 200: { items: [{ name: "one" }, { name: "two" }, { name: "three" }] } } };
  expect(stable(raw, { operation, owner, call: {} }).responses["200"]).toEqual({
    items: [{ name: "one" }, { name: "two" }],
  });
});

test("adds a missing field from the record, removes an unknown field and keeps all other fields", () => {
  const schema: Schema = {
    type: "object",
    properties: { items: { type: "array", items: { $ref: "#/components/schemas/Volume" } } },
  };
  const text: Schema = { type: "string" };
  const volume: Schema = {
    type: "object",
    properties: { name: text, region: text },
    required: ["name", "region"],
  };
  const known = { items: [{ name: "datasets" }, { name: "models", colour: "red" }] };
  const recorded = { items: [{ name: "volume-1", region: "eu-1" }] };
  expect(completeValue(known, recorded, (value) => refusalsOf(value, schema, { Volume: volume }))).toEqual({
    items: [
      { name: "datasets", region: "eu-1" },
      { name: "models", region: "eu-1" },
    ],
  });
});
