import { execFileSync } from "node:child_process";
import { test } from "vitest";

const SOURCE = new URL("../../../guest", import.meta.url).pathname;

test("passes the guest's golden vectors and the test of its ring", () => {
  execFileSync("make", ["-s", "-C", SOURCE, "test"], { stdio: "pipe" });
}, 180_000);

test("decodes damaged and random requests without harm, under the sanitizers", () => {
  execFileSync("make", ["-s", "-C", SOURCE, "fuzz-smoke"], { stdio: "pipe" });
}, 180_000);
