import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { Cgroups } from "../cgroup/cgroups.ts";
import { execute, machineId, machineSpec } from "../conformance.ts";
import type { Isolation, MachineId, MachineSpec } from "../driver.ts";
import { serviceAddress } from "../network/addresses.ts";
import { DNS_ADDRESS, startInternet, type Internet } from "../network/testing/internet.ts";
import type { LinuxDriver } from "./driver.ts";
import { INSTANCE, makeDriver as make } from "./testing/driver.ts";

const PORT = 5432;
const SERVES = { name: "db.shop.internal", address: serviceAddress(4), ports: [PORT] };
const ENGINES: Isolation[] = ["native", "gvisor"];

/** Script of a server that sends its name, and then echoes its input. */
const server = (says: string) => `$SIG{CHLD} = "IGNORE"; $| = 1;
$l = IO::Socket::INET->new(Listen => 9, LocalPort => ${PORT}, ReuseAddr => 1) or die;
while ($c = $l->accept) { next if fork; $c->autoflush; print $c "${says}\\n"; while (sysread $c, $d, 65536) { print $c $d } exit }`;

let internet: Internet;
let subject: Awaited<ReturnType<typeof make>>;
let driver: LinuxDriver;

beforeAll(async () => {
  internet = await startInternet();
  subject = await make({ uplink: internet.uplink, dnsServers: [DNS_ADDRESS] });
  ({ driver } = subject);
});
afterAll(async () => {
  await subject?.dispose();
  await internet?.close();
});

async function boot(change: Partial<MachineSpec>): Promise<MachineSpec> {
  const spec = machineSpec(subject.image, change);
  onTestFinished(() => driver.remove(spec.id));
  await driver.create(spec);
  return spec;
}

async function bootServer(change: Partial<MachineSpec>, says = "db"): Promise<MachineSpec> {
  const spec = await boot({ privateNetwork: { group: "acme", serves: SERVES }, ...change });
  const argv = ["perl", "-MIO::Socket::INET", "-e", server(says)];
  await driver.guest(spec.id).startCommand({ id: "cmd_serve", argv });
  // A connection on the loopback shows that the server listens on all its addresses.
  await expect
    .poll(() => execute(driver, spec.id, `exec 3<>/dev/tcp/127.0.0.1/${PORT} && head -1 <&3`).then(outputOf))
    .toBe(says);
  return spec;
}

const outputOf = ({ stdout, stderr }: { stdout: Buffer; stderr: Buffer }) =>
  Buffer.concat([stdout, stderr]).toString().trim();

/** Returns the text that the machine reads from the server, or the shell's error. */
async function ask(id: MachineId, host = SERVES.address, port = PORT): Promise<string> {
  const shell = `timeout 5 bash -c 'exec 3<>/dev/tcp/${host}/${port} && head -1 <&3' || echo "exit $?"`;
  const heard = outputOf(await execute(driver, id, shell));
  return /Connection refused|Name or service not known/.exec(heard)?.[0] ?? heard;
}
const REFUSED = "Connection refused";
const UNKNOWN = "Name or service not known";

/** Opens a connection that outlives this server, like every process of a machine. Returns all text received so far. */
async function hold(
  id: MachineId,
): Promise<{ say: (line: string) => Promise<void>; heard: () => Promise<string> }> {
  const command = "cmd_hold";
  const argv = ["bash", "-c", `exec 3<>/dev/tcp/${SERVES.address}/${PORT}; cat <&3 & cat >&3; wait`];
  await driver.guest(id).startCommand({ id: command, argv });
  return {
    say: (line) => driver.guest(id).writeCommandStdin(command, Buffer.from(`${line}\n`), false),
    heard: async () => {
      const { chunks } = await driver.guest(id).commandLogs(command, 0, 65_536);
      return chunks.map(({ data }) => data.toString()).join("");
    },
  };
}

describe.each(ENGINES)("a %s machine with a service", (isolation) => {
  test.each(ENGINES)("is reachable by a %s machine of its group, by name and by address", async (clients) => {
    await bootServer({ isolation });
    const { id } = await boot({
      isolation: clients,
      network: "open",
      privateNetwork: { group: "acme" },
    });
    expect(await ask(id)).toBe("db");
    expect(await ask(id, SERVES.name)).toBe("db");
    expect(await ask(id, SERVES.address, PORT + 1)).toBe(REFUSED);
    const shell = `getent ahosts ${SERVES.name} | cut -d' ' -f1 | sort -u`;
    expect(outputOf(await execute(driver, id, shell))).toBe(SERVES.address);
  });

  test("is unreachable for machines of another group or without one, in every network mode", async () => {
    await bootServer({ isolation });
    const strangers = await Promise.all([
      boot({ network: "open", privateNetwork: { group: "globex" } }),
      boot({ isolation: "native", network: "open", privateNetwork: { group: "globex" } }),
      boot({ network: "open" }),
      boot({ isolation: "native", network: "off" }),
    ]);
    for (const { id, network } of strangers) {
      expect(await ask(id)).toBe(REFUSED);
      if (network === "open") expect(await ask(id, SERVES.name)).toBe(UNKNOWN);
    }
  });

  test("refuses connections to the address of a removed machine until the next machine serves it, and still resolves the name", async () => {
    const first = await bootServer({ isolation }, "first");
    const { id } = await boot({ isolation: "native", network: "off", privateNetwork: { group: "acme" } });
    expect(await ask(id, SERVES.name)).toBe("first");
    await driver.remove(first.id);
    await driver.waitUntilIdle();
    expect(await ask(id, SERVES.name)).toBe(REFUSED);
    await bootServer({ isolation }, "second");
    expect(await ask(id, SERVES.name)).toBe("second");
  });

  test("refuses connections to the address of a machine immediately after its own exit", async () => {
    const { id: server } = await bootServer({ isolation });
    const { id } = await boot({ isolation: "native", privateNetwork: { group: "acme" } });
    const cgroups = await Cgroups.detect(`kontor${INSTANCE}`);
    await cgroups.killAll(server);
    await expect
      .poll(async () => (await driver.list()).find((each) => each.id === server)?.state)
      .toBe("dead");
    await driver.waitUntilIdle();
    expect(await ask(id)).toBe(REFUSED);
  });

  test("keeps a machine's connections across a restart of the server, and accepts new connections", async () => {
    await bootServer({ isolation });
    const [native, sandboxed] = await Promise.all([
      boot({ isolation: "native", network: "open", privateNetwork: { group: "acme" } }),
      boot({ network: "open", privateNetwork: { group: "acme" } }),
    ]);
    const connections = await Promise.all([native, sandboxed].map(({ id }) => hold(id)));
    for (const { say, heard } of connections) {
      await say("before");
      await expect.poll(heard).toBe("db\nbefore\n");
    }
    await driver.close();
    driver = await subject.again();
    for (const { say, heard } of connections) {
      await say("after");
      await expect.poll(heard).toBe("db\nbefore\nafter\n");
    }
    expect(await ask(native.id, SERVES.name)).toBe("db");
    expect(await ask(sandboxed.id, SERVES.name)).toBe("db");
    const kept = (await driver.list()).map(({ spec }) => spec?.privateNetwork?.group);
    expect(kept).toEqual(["acme", "acme", "acme"]);
  });

  test("sends and receives any amount of data", async () => {
    await bootServer({ isolation });
    const { id } = await boot({ isolation: "native", privateNetwork: { group: "acme" } });
    const bytes = 32 * 1024 * 1024;
    const shell = `exec 3<>/dev/tcp/${SERVES.address}/${PORT}; head -1 <&3 >/dev/null
      head -c ${bytes} /dev/zero >&3 & head -c ${bytes} <&3 | wc -c`;
    expect(outputOf(await execute(driver, id, shell))).toBe(String(bytes));
  });
});

test("restarts a database: a native machine with a volume keeps its address and its data", async () => {
  const parent = await mkdtemp(join(tmpdir(), "kontor-volumes-"));
  onTestFinished(() => rm(parent, { recursive: true }));
  const volume = { directory: join(parent, "volume"), sizeBytes: 64 * 1024 * 1024, isNew: true };
  const first = await bootServer({ isolation: "native", volume }, "first");
  const { id } = await boot({ network: "open", privateNetwork: { group: "acme" } });
  await execute(driver, first.id, "echo committed > /persist/row && sync");
  await driver.close();
  driver = await subject.again();
  expect(await ask(id, SERVES.name)).toBe("first");
  expect(outputOf(await execute(driver, first.id, "cat /persist/row"))).toBe("committed");
  const cgroups = await Cgroups.detect(`kontor${INSTANCE}`);
  await cgroups.killAll(first.id);
  await driver.remove(first.id);
  const second = await bootServer({ isolation: "native", volume: { ...volume, isNew: false } }, "second");
  expect(outputOf(await execute(driver, second.id, "cat /persist/row"))).toBe("committed");
  expect(await ask(id, SERVES.name)).toBe("second");
  // The machine ends while no server runs.
  await driver.close();
  await cgroups.killAll(second.id);
  driver = await subject.again();
  expect((await driver.list()).find((each) => each.id === second.id)?.state).toBe("dead");
  await driver.waitUntilIdle();
  expect(await ask(id, SERVES.name)).toBe(REFUSED);
  await driver.remove(second.id);
  const third = await bootServer({ isolation: "native", volume: { ...volume, isNew: false } }, "third");
  expect(outputOf(await execute(driver, third.id, "cat /persist/row"))).toBe("committed");
  expect(await ask(id, SERVES.name)).toBe("third");
});

test("puts a restored machine only into the group of its spec", async () => {
  await bootServer({ isolation: "native" });
  const parent = await mkdtemp(join(tmpdir(), "kontor-checkpoints-"));
  onTestFinished(() => rm(parent, { recursive: true }));
  const spec = await boot({ network: "open", privateNetwork: { group: "acme" } });
  expect(await ask(spec.id)).toBe("db");
  await driver.checkpoint(spec.id, join(parent, "checkpoint"));
  await driver.remove(spec.id);
  for (const [group, heard] of [
    ["acme", "db"],
    ["globex", REFUSED],
  ] as const) {
    const again = { ...spec, id: machineId(), privateNetwork: { group } };
    onTestFinished(() => driver.remove(again.id));
    await driver.restore(again, join(parent, "checkpoint"));
    expect(await ask(again.id)).toBe(heard);
  }
});
