import { readFile } from "node:fs/promises";
import { expect, test } from "vitest";
import { createSandbox, exec, output } from "./support/fixtures.ts";

test("two sandboxes of one warm pool have different host names, machine ids, random states and environments", async () => {
  const [one, two] = [await createSandbox({ env: { SECRET: "one" } }), await createSandbox()];
  const facts = [
    "hostname",
    "cat /etc/hostname",
    "cat /etc/machine-id 2>/dev/null; cat /proc/sys/kernel/random/boot_id 2>/dev/null; echo $KONTOR_SANDBOX_ID",
    "head -c 32 /dev/urandom | base64",
    "bash -c 'echo $RANDOM$RANDOM$RANDOM$RANDOM'",
    "mktemp -u",
  ];
  for (const fact of facts) expect(await output(one.id, fact), fact).not.toBe(await output(two.id, fact));
  expect(await output(two.id, "env | grep -c SECRET || true")).toBe("0");
  expect(await output(one.id, "hostname")).toBe(one.id.replace("_", "-"));
});

test("a new sandbox contains no files, processes or CPU time of other sandboxes", async () => {
  const box = await createSandbox();
  expect(
    await output(
      box.id,
      "ls -A /workspace /persist /root | grep -v -e ':$' -e '^$' -e '^\\.bashrc$' -e '^\\.profile$' || true",
    ),
  ).toBe("");
  expect(await output(box.id, "ls -A /tmp | grep -v '^\\.keep$' || true")).toBe("");
  // PID 1 is the guest program; this exec started every other process.
  const processes = await output(box.id, "ps -eo pid=,args= | grep -v -e 'ps -eo' -e 'grep -v' -e 'bash -c'");
  expect(processes.split("\n")).toHaveLength(1);
  expect(processes.trim()).toMatch(/^1 .*guest/);
});

test("the kernel in a sandbox is not the host's, and reveals nothing about the host", async () => {
  const box = await createSandbox();
  expect(await output(box.id, "cat /proc/version")).not.toBe(
    (await readFile("/proc/version", "utf8")).trim(),
  );
  const mounts = await output(box.id, "cat /proc/mounts");
  expect(mounts).not.toContain("kontor-e2e-");
  expect(await output(box.id, "ls /.kontor/run")).toBe("guest.sock");
  // All machines share the template's files, but writes of one machine are invisible to the others.
  await exec(box.id, "echo changed > /etc/motd; rm /usr/bin/less; echo x > /.kontor/guest || true");
  const other = await createSandbox();
  expect(await output(other.id, "test -e /usr/bin/less && ! grep -q changed /etc/motd && echo same")).toBe(
    "same",
  );
  expect((await exec(other.id, "echo works")).stdout).toBe("works\n");
});
