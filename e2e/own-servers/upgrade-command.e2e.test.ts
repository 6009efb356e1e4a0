/**
 * `kontor upgrade` on its own installation: a repository of this checkout, with commits that work and commits that
 * fail.
 */
import { type ChildProcess, spawn } from "node:child_process";
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { run } from "@kontor/runtime/exec.ts";
import { eventually } from "../support/answers.ts";
import { linkImages } from "../support/images.ts";
import { commitAll, copyCheckout } from "../support/older-code.ts";
import { freePort, Server } from "../support/server.ts";

const place = mkdtempSync("/var/tmp/kontor-upgrade-");
// PostgreSQL's account cannot enter the mode 0700 of mkdtemp.
chmodSync(place, 0o711);
const code = join(place, "code");
const dataDir = join(place, "data");
/** Timeout of one command, which builds programs and starts a server. */
const commandTimeoutMs = 120_000;
const children: ChildProcess[] = [];
/** Commits of the repository, by the change that they make. */
const commits: Record<string, string> = {};
let server: Server;
let sandbox: string;
let pid: string;

beforeAll(async () => {
  await copyCheckout(code);
  const listeners = join(code, "server/src/compose/http.ts");
  const original = readFileSync(listeners, "utf8");
  const beforeListening = "const [plain, tls] = inheritedSockets();";
  if (!original.includes(beforeListening)) throw new Error(`${listeners} lacks "${beforeListening}"`);
  const migrations = join(code, "server/migrations");
  const add = async (name: string, changes: Record<string, string>) => {
    const kept = new Map(
      Object.keys(changes).map((file) => [file, existsSync(file) ? readFileSync(file) : undefined]),
    );
    for (const [file, text] of Object.entries(changes)) writeFileSync(file, text);
    commits[name] = await commitAll(code, name);
    for (const [file, text] of kept) {
      if (text === undefined) rmSync(file);
      else writeFileSync(file, text);
    }
    await run(["git", "-C", code, "reset", "--quiet", "--hard", "HEAD~1"]);
  };
  const addColumn = "alter table users add column extra text;";
  // The second migration fails after the first was committed.
  await add("broken migration", {
    [join(migrations, "9997_added.sql")]: addColumn,
    [join(migrations, "9998_broken.sql")]: "delete from users; select 1 / 0;",
  });
  // The server fails after it has migrated the database and served requests.
  await add("broken start", {
    [join(migrations, "9997_added.sql")]: addColumn,
    [listeners]: original.replace(beforeListening, 'throw new Error("this version is broken");'),
  });
  await add("good", { [join(migrations, "9997_added.sql")]: addColumn });
  await add("better", {
    [join(migrations, "9997_added.sql")]: addColumn,
    [join(migrations, "9999_better.sql")]: "alter table users add column better text;",
  });
  await add("pulled broken start", {
    [join(migrations, "9997_added.sql")]: addColumn,
    [join(migrations, "9999_better.sql")]: "alter table users add column better text;",
    [listeners]: original.replace(beforeListening, 'throw new Error("this version is broken");'),
  });
  await add("pulled", {
    [join(migrations, "9997_added.sql")]: addColumn,
    [join(migrations, "9999_better.sql")]: "alter table users add column better text;",
    [join(migrations, "9999_pulled.sql")]: "alter table users add column pulled text;",
  });

  mkdirSync(dataDir, { mode: 0o711 });
  await linkImages(dataDir, ["debian-12"]);
  server = new Server({ dataDir, port: await freePort(), env: {} });
  await startUp();
  sandbox = await createSandbox();
  pid = (await exec("nohup sleep 3000 >/dev/null 2>&1 & echo $!")).trim();
}, 300_000);
afterAll(async () => {
  for (const child of children) killGroup(child);
  if (existsSync(dataDir)) await kontor(["down"]);
  await server?.destroy();
  rmSync(place, { recursive: true, force: true });
}, 120_000);

/** Starts the command of the installation's checkout in its own process group. */
function start(args: readonly string[]): {
  child: ChildProcess;
  end: Promise<{ code: number; output: string }>;
} {
  const file = join(place, `output-${children.length}`);
  const out = openSync(file, "w");
  const child = spawn(join(code, "kontor"), [...args, "--data", dataDir], {
    detached: true,
    stdio: ["ignore", out, out],
    env: {
      PATH: process.env["PATH"],
      HOME: "/root",
      KONTOR_POOL_SIZE: "0",
      KONTOR_TLS_MODE: "off",
      KONTOR_PREPARE_TEMPLATES: "debian-12",
    },
  });
  closeSync(out);
  children.push(child);
  const deadline = setTimeout(() => killGroup(child), commandTimeoutMs);
  const end = new Promise<{ code: number; output: string }>((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", (status) => {
      clearTimeout(deadline);
      resolve({ code: status ?? 137, output: readFileSync(file, "utf8") });
    });
  });
  return { child, end };
}

const kontor = (args: readonly string[]) => start(args).end;
const upgrade = (to: string, ...more: string[]) =>
  kontor(["upgrade", "--skip-doctor", "--to", commits[to] ?? to, ...more]);

/** Starts an upgrade, and kills it when `moment` resolves, which must happen before the upgrade ends. */
async function killedWhen(to: string, moment: (isRunning: () => boolean) => Promise<void>): Promise<void> {
  const { child, end } = start(["upgrade", "--skip-doctor", "--to", commits[to]!]);
  const isRunning = () => child.exitCode === null && child.signalCode === null;
  await moment(isRunning);
  const wasRunning = isRunning();
  killGroup(child);
  const { output } = await end;
  expect(wasRunning, output).toBe(true);
}

async function isReady(): Promise<void> {
  await eventually(
    async () => server.pid !== undefined && (await server.api("GET", "/readyz")).status === 200,
    Boolean,
    60_000,
  );
}

function killGroup({ pid: leader }: ChildProcess): void {
  try {
    process.kill(-(leader ?? 0), "SIGKILL");
  } catch {
    // The process has already ended.
  }
}

async function startUp(): Promise<void> {
  const up = await kontor(["up", "--detach", "--port", String(server.description.port)]);
  expect(up.code, up.output).toBe(0);
}

async function createSandbox(): Promise<string> {
  const body = { template: "debian-12", timeout_seconds: 1800 };
  const made = await server.api("POST", "/v1/sandboxes", { body });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  return made.body.id;
}

async function exec(command: string): Promise<string> {
  const reply = await server.api("POST", `/v1/sandboxes/${sandbox}/exec`, { body: { command } });
  expect(reply.status, JSON.stringify(reply.body)).toBe(200);
  return reply.body.stdout;
}

/** Requests the server without a pause until `work` ends. Returns the errors. */
async function whileVisited(work: () => Promise<unknown>): Promise<string[]> {
  const failures: string[] = [];
  let isOver = false;
  const visit = async (): Promise<void> => {
    while (!isOver) {
      await fetch(`${server.baseUrl}/healthz`, { headers: { connection: "close" } }).then(
        (response) => response.text(),
        ({ cause, message }: Error) => failures.push(cause instanceof Error ? cause.message : message),
      );
      await sleep(20);
    }
  };
  const visitors = [visit(), visit()];
  await work().finally(() => (isOver = true));
  await Promise.all(visitors);
  return failures;
}

async function create(name: string): Promise<void> {
  const made = await server.api("POST", "/api/v1/projects", { body: { name } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
}

const projects = async () =>
  ((await server.api("GET", "/api/v1/projects")).body.items as { name: string }[])
    .map(({ name }) => name)
    .toSorted();
const addedMigrations = async () =>
  (await server.sql("select name from migrations where name > '9000' order by name", [])).map(
    ({ name }) => name,
  );
const codeNow = () => readlinkSync(join(dataDir, "current"));
const head = async () => (await run(["git", "-C", code, "rev-parse", "HEAD"])).stdout.trim();
const isUnderWay = () => existsSync(join(dataDir, "upgrade/state.json"));

test("a dry run shows what the upgrade would change, and changes nothing", async () => {
  const before = [server.pid, codeNow(), await head()];
  const shown = await upgrade("good", "--dry-run");
  expect([shown.code, shown.output]).toEqual([0, expect.stringContaining("Migrations  9997_added.sql")]);
  expect([server.pid, codeNow(), await head()]).toEqual(before);
  expect(existsSync(join(code, ".cache/releases"))).toBe(false);
});

test("refuses to upgrade a changed checkout, to an unknown name, or in a directory without Kontor", async () => {
  writeFileSync(join(code, "README.md"), "changed");
  const changed = await upgrade("good");
  await run(["git", "-C", code, "checkout", "--quiet", "README.md"]);
  expect([changed.code, changed.output]).toEqual([1, expect.stringContaining("README.md")]);
  const unknown = await upgrade("no-such-tag");
  expect([unknown.code, unknown.output]).toEqual([
    1,
    expect.stringContaining("no-such-tag is neither a commit"),
  ]);
  const empty = await upgrade(place);
  expect([empty.code, empty.output]).toEqual([1, expect.stringContaining("no directory of Kontor's code")]);
  expect(codeNow()).toBe(code);
});

test("restores the old code and the old database when a migration fails", async () => {
  await create("before");
  const users = await server.sql("select * from users order by id", []);
  let done: { code: number; output: string } | undefined;
  const failures = await whileVisited(async () => (done = await upgrade("broken migration")));
  expect([done?.code, done?.output]).toEqual([3, expect.stringContaining("9998_broken.sql")]);
  expect(failures).toEqual([]);
  expect(await addedMigrations()).toEqual([]);
  expect(await server.sql("select * from users order by id", [])).toEqual(users);
  expect(await projects()).toEqual(["before"]);
  expect([codeNow(), isUnderWay()]).toEqual([code, false]);
  expect(await exec(`kill -0 ${pid} && echo alive`)).toBe("alive\n");
}, 180_000);

test("keeps the rows of a new server that worked and fails later, and reports where they are", async () => {
  const failed = await upgrade("broken start");
  expect(failed.code, failed.output).toBe(3);
  expect(failed.output).toContain("this version is broken");
  expect(failed.output).toMatch(
    /The new version worked between \S+ and \S+\. .*database-after has all of them/,
  );
  expect(existsSync(join(dataDir, "upgrade/database-after/dump.json"))).toBe(true);
  expect([await addedMigrations(), codeNow(), isUnderWay()]).toEqual([[], code, false]);
  expect(await projects()).toEqual(["before"]);
  expect(await exec(`kill -0 ${pid} && echo alive`)).toBe("alive\n");
}, 180_000);

test("lets the old server complete a rollback during which the upgrade was killed", async () => {
  await killedWhen("broken migration", async (isRunning) => {
    while (isRunning() && codeNow() === code) await sleep(2);
    while (isRunning() && codeNow() !== code) await sleep(2);
  });
  await isReady();
  expect([await addedMigrations(), codeNow(), isUnderWay()]).toEqual([[], code, false]);
  expect(await projects()).toEqual(["before"]);
}, 180_000);

test("starts the old server when the upgrade is killed before the database is copied", async () => {
  await killedWhen("good", async (isRunning) => {
    while (isRunning() && server.pid !== undefined) await sleep(2);
  });
  await isReady();
  expect([await addedMigrations(), codeNow(), isUnderWay()]).toEqual([[], code, false]);
  expect(await projects()).toEqual(["before"]);
}, 180_000);

test("upgrades without refusing a connection, and moves the checkout to the new commit", async () => {
  let done: { code: number; output: string } | undefined;
  const failures = await whileVisited(async () => (done = await upgrade("good")));
  expect(done?.code, done?.output).toBe(0);
  expect(failures).toEqual([]);
  expect(await addedMigrations()).toEqual(["9997_added.sql"]);
  expect(codeNow()).toBe(join(code, ".cache/releases", commits["good"]!));
  expect([await head(), isUnderWay()]).toEqual([commits["good"], false]);
  expect(await projects()).toEqual(["before"]);
  expect(await exec(`kill -0 ${pid} && echo alive`)).toBe("alive\n");
  const again = await upgrade("good");
  expect([again.code, again.output]).toEqual([0, expect.stringContaining("served by this code already")]);
  const older = await upgrade(await commitBefore());
  expect([older.code, older.output]).toEqual([1, expect.stringContaining("does not fit the database")]);
}, 180_000);

const commitBefore = async () => (await run(["git", "-C", code, "rev-parse", "HEAD~1"])).stdout.trim();

test("a killed upgrade leaves the new server running, and the next upgrade completes the work", async () => {
  const good = codeNow();
  await killedWhen("better", async (isRunning) => {
    while (isRunning() && codeNow() === good) await sleep(2);
  });
  await isReady();
  expect(await projects()).toEqual(["before"]);
  expect(isUnderWay()).toBe(true);
  const again = await upgrade("better");
  expect([again.code, again.output]).toEqual([0, expect.stringContaining("was interrupted")]);
  expect(await addedMigrations()).toEqual(["9997_added.sql", "9999_better.sql"]);
  expect([await head(), isUnderWay()]).toEqual([commits["better"], false]);
  expect(await exec(`kill -0 ${pid} && echo alive`)).toBe("alive\n");
}, 180_000);

test("keeps the upgraded code when the checkout moved to code that does not start or does not fit the database", async () => {
  const upgraded = codeNow();
  const moveTo = (commit: string) => run(["git", "-C", code, "checkout", "--quiet", commit]);
  await moveTo(`${commits["better"]!}~1`);
  const older = await kontor(["restart"]);
  expect([older.code, older.output]).toEqual([1, expect.stringContaining("does not fit the database")]);
  expect(codeNow()).toBe(upgraded);
  await moveTo(commits["pulled broken start"]!);
  const broken = await kontor(["restart"]);
  expect([broken.code, broken.output]).toEqual([3, expect.stringContaining("this version is broken")]);
  expect(codeNow()).toBe(upgraded);
  await isReady();
  expect(await projects()).toEqual(["before"]);
  expect(await exec(`kill -0 ${pid} && echo alive`)).toBe("alive\n");
  await moveTo(commits["better"]!);
}, 180_000);

test("restarts with the code of a checkout that the operator moved", async () => {
  const upgraded = codeNow();
  const same = await kontor(["restart"]);
  expect([same.code, codeNow()]).toEqual([0, upgraded]);
  await run(["git", "-C", code, "checkout", "--quiet", commits["pulled"]!]);
  const moved = await kontor(["restart"]);
  expect([moved.code, codeNow()]).toEqual([0, code]);
  expect(await addedMigrations()).toEqual(["9997_added.sql", "9999_better.sql", "9999_pulled.sql"]);
  expect(await exec(`kill -0 ${pid} && echo alive`)).toBe("alive\n");
}, 180_000);

test("starts the upgraded code at the next kontor up", async () => {
  const down = await kontor(["down"]);
  expect(down.code, down.output).toBe(0);
  await startUp();
  expect([codeNow(), await projects()]).toEqual([code, ["before"]]);
}, 180_000);
