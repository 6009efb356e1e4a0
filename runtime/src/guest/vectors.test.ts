import { execFileSync } from "node:child_process";
import { test } from "vitest";

const SOURCE = new URL("../../../guest", import.meta.url).pathname;

test("the guest's codec says what the golden vectors say, and its ring keeps what it promises", () => {
  execFileSync("make", ["-s", "-C", SOURCE, "test"], { stdio: "pipe" });
}, 180_000);

test("damaged and random requests do the guest's decoder no harm, under the sanitizers", () => {
  execFileSync("make", ["-s", "-C", SOURCE, "fuzz-smoke"], { stdio: "pipe" });
}, 180_000);
