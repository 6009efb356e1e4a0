import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { run } from "@kontor/runtime/exec.ts";
import { makeDeployKey } from "./deploy-key.ts";
import { temporary } from "../testing/git-app.ts";

test("makes a key that ssh-keygen reads, with the public key that ssh-keygen derives", async () => {
  const { publicKey, privateKey } = await makeDeployKey();
  const file = join(await temporary(), "key");
  await writeFile(file, privateKey, { mode: 0o600 });
  const { stdout } = await run(["ssh-keygen", "-y", "-f", file]);
  expect(stdout.trim()).toBe(publicKey);
  expect((await makeDeployKey()).publicKey).not.toBe(publicKey);
});
