import { expect, test } from "vitest";
import { nearest } from "./nearest.ts";
import { synonymIn } from "../http/input/synonyms.ts";

test("finds the known word for a typing mistake, and nothing for another word", () => {
  const known = ["timeout_seconds", "template", "network"];
  expect(nearest("timeout_second", known)).toBe("timeout_seconds");
  expect(nearest("tmeplate", known)).toBe("template");
  expect(nearest("Network", known)).toBe("network");
  expect(nearest("colour", known)).toBeUndefined();
  expect(nearest("x".repeat(100_000), known)).toBeUndefined();
});

test("finds a name without its unit, unless several names begin with it", () => {
  expect(nearest("timeout", ["on_timeout", "timeout_seconds"])).toBe("timeout_seconds");
  expect(nearest("output", ["output_bytes", "output_path"])).toBeUndefined();
});

test("finds the field that has another name in other products", () => {
  expect(synonymIn("cmd", ["command", "cwd"])).toBe("command");
  expect(synonymIn("messages", ["input", "messages_kept"])).toBe("input");
  expect(synonymIn("image", ["name", "template"])).toBe("template");
  expect(synonymIn("cmd", ["name"])).toBeUndefined();
  expect(synonymIn("constructor", ["name"])).toBeUndefined();
});
