import { expect, test } from "vitest";
import { openWorld } from "./world.ts";

const world = await openWorld();
const { owner, apps } = world;

async function call(method: string, path: string, body: unknown): Promise<Record<string, string>> {
  const { status, json, text } = await world.call(method, path, { token: owner.token, body });
  expect(status, text).toBeLessThan(300);
  return json as Record<string, string>;
}

const at = (label: string) => apps.routes.find(apps.routes.hostOf(label));
const nothingYet = { state: "down", machine: null, port: null };

test("routes an environment's host at once after its creation, and only its new host after a rename", async () => {
  const { id } = await call("POST", "/api/v1/projects", { name: "led" });
  expect(at("led")).toMatchObject(nothingYet);
  const path = `/api/v1/projects/${id}`;
  await call("POST", `${path}/environments`, { name: "next", kind: "staging", branch: "next" });
  expect(at("led--next")).toMatchObject(nothingYet);
  await call("PATCH", path, { name: "led-on" });
  expect(at("led")).toBeUndefined();
  expect(at("led--next")).toBeUndefined();
  expect(at("led-on")).toMatchObject(nothingYet);
  expect(at("led-on--next")).toMatchObject(nothingYet);
});
