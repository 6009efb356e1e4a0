/**
 * The documentation as printed. The shell blocks of each page run unchanged and in order, in one shell, against one
 * server at the addresses of the pages (decision 0123).
 */
import { execFile } from "node:child_process";
import { globSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { findMissing, readPage } from "./docs/page.ts";
import { asPrinted, notAsPrinted } from "./docs/pages.ts";
import { ReaderSession } from "./docs/session.ts";
import { type Server, startServer } from "./support/server.ts";

const checkout = join(import.meta.dirname, "..");
/** Timeout of a block: a first build also makes its base image. */
const blockTimeoutMs = 280_000;

test("every page with shell blocks is run as printed, or is listed with the reason why not", () => {
  const pages = globSync(["README.md", "docs/*.md", "docs/agents/*.md"], { cwd: checkout });
  const withShell = pages.filter((file) => readPage(file).sections.some(({ blocks }) => blocks.length > 0));
  const listed = [...asPrinted.map(({ file }) => file), ...Object.keys(notAsPrinted)];
  expect(listed.toSorted()).toEqual(withShell.toSorted());
});

test("every command that the README names exists", async () => {
  const { text } = readPage("README.md");
  const named = new Set([...text.matchAll(/`?\.\/kontor ([a-z-]+)/g)].map(([, verb]) => verb));
  const { stdout } = await promisify(execFile)(process.execPath, ["cli/src/main.ts", "--help"], {
    cwd: checkout,
  });
  expect(named.size).toBeGreaterThan(5);
  for (const verb of named) expect(stdout).toMatch(new RegExp(`^\\s+${verb}\\b`, "m"));
});

test("the comparison of a page's output reports a missing line and a line in another order", () => {
  expect(findMissing(["a…c", "d"], "xa\nbc d")).toBeUndefined();
  expect(findMissing(["a", "b"], "b a")).toBe("b");
  expect(findMissing(["a.c"], "abc")).toBe("a.c");
});

describe("a page", () => {
  let server: Server;

  beforeAll(async () => {
    // The server uses the ports and the directory of the pages. A server that already runs there is not stopped.
    server = await startServer(
      { KONTOR_TLS_PORT: "8443" },
      [...new Set(asPrinted.flatMap(({ templates }) => templates))],
      { isKept: true, port: 8080 },
    );
  });
  afterAll(async () => {
    await promisify(execFile)("./kontor", ["dev-world", "--stop"], { cwd: checkout }).catch(() => {});
    await server?.destroy();
  });

  describe.for(asPrinted)("$file", ({ file }) => {
    const { text, sections } = readPage(file);
    let reader: ReaderSession;

    beforeAll(() => {
      reader = new ReaderSession(server.dataDir);
    });
    afterAll(async () => {
      await reader?.close();
    });

    // Later blocks depend on earlier blocks, so a retry starts with the first block of the page.
    test.for(sections.filter((section) => section.blocks.length > 0))(
      "$title",
      { timeout: 600_000, retry: 0 },
      async ({ blocks }) => {
        for (const { code, shown } of blocks) {
          const output = await reader.run(code, blockTimeoutMs);
          const missing = findMissing(shown, output);
          const fault = `The output of\n${code}\nlacks this line:\n${missing}\nIt is:\n${output}`;
          expect(missing, fault).toBeUndefined();
        }
      },
    );

    test("shows output, and ends with a clean-up and the next step", async () => {
      expect(sections.flatMap(({ blocks }) => blocks.flatMap(({ shown }) => shown)).length).toBeGreaterThan(
        0,
      );
      expect(text).toMatch(/^## (?:Clean up|Next steps?)$/m);
      const left = {
        sandboxes: (await server.api("GET", "/v1/sandboxes?status=running&status=paused")).body.items,
        volumes: (await server.api("GET", "/v1/sandboxes/volumes")).body.items,
        projects: (await server.api("GET", "/api/v1/projects")).body.items,
        agents: (await server.api("GET", "/v1/agents")).body.items,
      };
      expect(left).toEqual({ sandboxes: [], volumes: [], projects: [], agents: [] });
    });
  });
});
