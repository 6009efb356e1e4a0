import { expect, test } from "vitest";
import { nearAddress } from "./near-address.ts";

const paths = [
  "/v1/sandboxes",
  "/v1/sandboxes/{sandbox_id}",
  "/v1/sandboxes/{sandbox_id}/exec",
  "/api/v1/projects",
];

test("suggests the address that differs in one segment", () => {
  expect(nearAddress("/v1/sandbox", paths)).toBe("/v1/sandboxes");
  expect(nearAddress("/api/v1/project", paths)).toBe("/api/v1/projects");
  expect(nearAddress("/v1/sandbox/sbx_1/exec", paths)).toBe("/v1/sandboxes/sbx_1/exec");
});

test("suggests the address with its version when the version is missing", () => {
  expect(nearAddress("/sandboxes", paths)).toBe("/v1/sandboxes");
  expect(nearAddress("/projects", paths)).toBe("/api/v1/projects");
});

test("suggests nothing when two segments differ, or the path is long", () => {
  expect(nearAddress("/v1/sandbox/sbx_1/exce", paths)).toBeUndefined();
  expect(nearAddress("/favicon.ico", paths)).toBeUndefined();
  expect(nearAddress(`/${"v1/".repeat(5000)}`, paths)).toBeUndefined();
});
