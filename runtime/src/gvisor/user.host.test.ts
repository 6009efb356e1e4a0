/** Tests the ordinary user of an image, and its `sudo`, in a real gVisor machine. */
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { execute, machineSpec } from "../conformance.ts";
import type { MachineSpec, SpawnSpec } from "../driver.ts";
import type { LinuxDriver } from "../linux/driver.ts";
import { makeDriver } from "../linux/testing/driver.ts";

let subject: Awaited<ReturnType<typeof makeDriver>>;
let driver: LinuxDriver;
let spec: MachineSpec;

beforeAll(async () => {
  subject = await makeDriver({ instance: 59 });
  ({ driver } = subject);
  spec = machineSpec(subject.image, { env: { OF_MACHINE: "yes" } });
  await driver.create(spec);
});
afterAll(() => subject?.dispose());

async function run(shell: string, change: Partial<SpawnSpec> = {}, stdin?: Buffer) {
  const { stdout, stderr, exit } = await execute(driver, spec.id, { shell, user: "user", ...change }, stdin);
  return { out: stdout.toString().trimEnd(), err: stderr.toString().trimEnd(), code: exit.code, exit };
}

test("has a user that owns its home and its files", async () => {
  const { out } = await run(
    "id; echo $HOME $USER $SHELL; touch ~/made; stat -c '%U %G %a' ~ ~/made ~/.bashrc",
  );
  expect(out.split("\n")).toEqual([
    "uid=1000(user) gid=1000(user) groups=1000(user)",
    "/home/user user /bin/bash",
    "user user 700",
    "user user 644",
    "user user 644",
  ]);
  expect((await run("touch /etc/made")).code).toBe(1);
  expect((await run("pwd; touch own && stat -c %U own")).out).toBe("/workspace\nuser");
});

test("sudo runs a command as root or another user, without a password", async () => {
  expect(
    (await run("sudo id -u; sudo -n -u nobody id -un; sudo -u '#65534' id -u; sudo -v && echo valid")).out,
  ).toBe("0\nnobody\n65534\nvalid");
  expect((await run("sudo sh -c 'echo made > /etc/made'; stat -c %U /etc/made; sudo rm /etc/made")).out).toBe(
    "root",
  );
  expect(
    (await run("cd /tmp; sudo pwd; sudo -i pwd; sudo -i echo 'a  b' '$HOME'; sudo -s 'echo' '*'")).out,
  ).toBe("/tmp\n/root\na  b /root\n*");
});

test("sudo passes the machine's environment to the command, and the caller's only with -E", async () => {
  const show = "'echo $OF_MACHINE $OWN $HOME $USER $SUDO_USER $SUDO_UID'";
  expect((await run(`OWN=1 sudo sh -c ${show}`)).out).toBe("yes /root root user 1000");
  expect((await run(`sudo OWN=2 sh -c ${show}`)).out).toBe("yes 2 /root root user 1000");
  expect((await run(`OWN=3 sudo -E sh -c ${show}`)).out).toBe("yes 3 /home/user user user 1000");
});

test("sudo forwards input, output, exit codes and signals", async () => {
  const bytes = Buffer.alloc(3_000_000, "x");
  expect((await run("sudo cat | sudo wc -c", {}, bytes)).out).toBe("3000000");
  expect(await run("sudo sh -c 'echo out; echo err >&2; exit 7'")).toMatchObject({
    out: "out",
    err: "err",
    code: 7,
  });
  expect((await run("sudo sh -c 'kill -9 $$'; echo $?")).out).toContain("137");
  const caught =
    "sudo bash -c 'trap \"echo caught; exit 3\" TERM; echo up; while :; do sleep 0.1; done' > /tmp/said &";
  expect(
    (await run(`${caught} until grep -q up /tmp/said; do :; done; kill $!; wait $!; echo $?; cat /tmp/said`))
      .out,
  ).toBe("3\nup\ncaught");
  const missing = await run("sudo no-such-program");
  expect(missing).toMatchObject({ err: "sudo: no-such-program: command not found", code: 1 });
  expect((await run("sudo echo $(seq 6000) | wc -w")).out).toBe("6000");
  const many = await run("sudo true $(seq 40000)");
  expect(many).toMatchObject({ err: "sudo: a command has at most 32768 arguments", code: 1 });
  expect(await run("sudo")).toMatchObject({ code: 1, err: expect.stringContaining("usage: sudo") });
  expect(await run("sudo -u nobody-at-all true")).toMatchObject({
    code: 1,
    err: "sudo: unknown user nobody-at-all",
  });
});

test("sudo refuses users that the policy does not name, and any policy that others can write", async () => {
  const refused = { code: 1, err: expect.stringContaining("may not run commands"), out: "" };
  expect(await run("sudo id", { user: "nobody" })).toMatchObject(refused);
  expect((await run("sudo id -u", { user: "root" })).out).toBe("0");
  await run("chmod 666 /etc/sudoers.d/kontor", { user: "root" });
  expect(await run("sudo id")).toMatchObject(refused);
  await run("chmod 440 /etc/sudoers.d/kontor", { user: "root" });
  expect((await run("sudo id -u")).out).toBe("0");
});

test("ends the command of sudo with the caller's timeout", async () => {
  const { exit } = await run("sudo sleep 1234", { timeoutMs: 1000 });
  expect(exit.timedOut).toBe(true);
  await expect.poll(async () => (await run("pgrep -fc 'sleep 123[4]' || true")).out).toBe("0");
});

test("runs many sudo commands at once, also while other clients connect without a request", async () => {
  const dial = `perl -MSocket -e 'for (1..10) { socket(my $s, AF_UNIX, SOCK_STREAM, 0); connect($s, pack("S a*", 1, "\\0kontor-sudo")); push @all, $s } sleep 3'`;
  const many = "for n in $(seq 20); do sudo id -u & done; wait $(jobs -p | tail -n 20)";
  const { out } = await run(`${dial} > /dev/null & sleep 0.2; ${many}`);
  expect(out.split("\n").filter((line) => line === "0")).toHaveLength(20);
});

test("gives a command at a terminal its own terminal, with size and keys", async () => {
  const guest = driver.guest(spec.id);
  const shell =
    "sudo sh -c 'test -t 0 && stty size && tty; read line; echo got $line; sleep 600'; echo ended $?";
  const size = { cols: 90, rows: 30 };
  await guest.startCommand({ id: "terminal", shell, user: "user", terminal: size });
  const readScreen = async () => {
    const { chunks } = await guest.commandLogs("terminal", 0, 64 * 1024);
    return Buffer.concat(chunks.map(({ data }) => data)).toString();
  };
  await expect.poll(readScreen).toContain("30 90");
  await guest.writeCommandStdin("terminal", Buffer.from("hello\r"), false);
  await expect.poll(readScreen).toContain("got hello");
  await guest.writeCommandStdin("terminal", Buffer.from("\u0003"), false);
  await expect.poll(readScreen).toContain("ended 130");
});

test("keeps a running sudo after a restore, and accepts new sudo commands", async () => {
  await driver.guest(spec.id).startCommand({
    id: "kept",
    shell: "sudo sh -c 'echo up; until test -e /tmp/go; do sleep 0.1; done; echo went'",
    user: "user",
  });
  await expect.poll(async () => (await driver.guest(spec.id).getCommand("kept")).outputBytes).toBe(3);
  const paused = join(subject.stateDir, "paused");
  await driver.checkpoint(spec.id, paused);
  await driver.remove(spec.id);
  onTestFinished(() => driver.remove(spec.id));
  await driver.restore(spec, paused);
  expect((await run("sudo touch /tmp/go && sudo id -u")).out).toBe("0");
  await expect.poll(async () => (await driver.guest(spec.id).getCommand("kept")).status).toBe("exited");
  expect(await driver.guest(spec.id).getCommand("kept")).toMatchObject({ exitCode: 0 });
});
