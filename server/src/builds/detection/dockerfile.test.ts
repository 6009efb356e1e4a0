import fc from "fast-check";
import { expect, test } from "vitest";
import { cmd, run } from "./dockerfile.ts";
import { instructionsOf } from "./testing/dockerfile-lines.ts";

/** Arbitrary lines of ordinary words and of characters that could end an instruction. */
const hostile = fc
  .array(
    fc.oneof(
      fc.constantFrom(
        ..."\\ \" ' ` \n \r \t # $ < > & | ; [ ] { } ( ) = ~ * ? ! --mount=x <<EOF \nRUN \nUSER\u2028root \u0085".split(
          " ",
        ),
        "\\\n",
        " ",
        "\0",
        "\ud800",
      ),
      fc.constantFrom("npm", "run", "build", "node", "server.js", "&&", "$PORT", "A=b", "é"),
      fc.string(),
    ),
    { minLength: 1 },
  )
  .map((parts) => parts.join(""));

test("writes any line of a repository as one instruction with exactly that text", () => {
  fc.assert(
    fc.property(hostile, (line) => {
      const [instruction, ...others] = instructionsOf(`${run(line, ["/root/.npm"])}\n`);
      expect(others).toEqual([]);
      expect(instruction).toEqual({
        word: "RUN",
        flags: ["--mount=type=cache,target=/root/.npm"],
        rest: typeof instruction?.rest === "string" ? line.trim() : ["/bin/sh", "-c", line],
      });
    }),
    { numRuns: 1000 },
  );
});

test("writes any start command as the image's only command", () => {
  fc.assert(
    fc.property(hostile, (given) => {
      const line = given.trim();
      const [instruction, ...others] = instructionsOf(`${cmd(given)}\n`);
      expect(others).toEqual([]);
      const words = instruction?.rest as string[];
      if (words[0] === "/bin/sh" && words[1] === "-c") expect([line, `exec ${line}`]).toContain(words[2]);
      else expect(words.join(" ")).toBe(line.replaceAll(/ +/g, " "));
    }),
    { numRuns: 1000 },
  );
});

test("writes an ordinary line unquoted", () => {
  expect(run("npm ci && npm run build")).toBe("RUN npm ci && npm run build");
});

test("starts a single program without a shell, so that the program receives the signals", () => {
  expect(cmd("node server.js")).toBe('CMD ["node", "server.js"]');
  expect(cmd("uvicorn --port $PORT main:app")).toBe(
    'CMD ["/bin/sh", "-c", "exec uvicorn --port $PORT main:app"]',
  );
  expect(cmd("A=b node server.js")).toBe('CMD ["/bin/sh", "-c", "A=b node server.js"]');
  expect(cmd("a && b")).toBe('CMD ["/bin/sh", "-c", "a && b"]');
});

test("refuses a command above the length limit of a builder's line", () => {
  expect(() => run("x".repeat(10_000))).toThrow(RangeError);
});
