import { expect, test } from "vitest";
import { LogLines } from "./log.ts";

function collect(secrets: string[], pieces: string[], dropped: string[] = []): string {
  let text = "";
  const lines = new LogLines(secrets, dropped, (piece) => (text += piece));
  for (const piece of pieces) lines.write(piece);
  lines.flush();
  return text;
}

test("hides a secret, at whatever byte a piece of output ends", () => {
  const secret = "tok-1234567890";
  const whole = `a ${secret} b ${secret}\nlast ${secret}`;
  for (let at = 0; at <= whole.length; at += 1) {
    const text = collect([secret], [whole.slice(0, at), whole.slice(at)]);
    expect(text).toBe("a [secret] b [secret]\nlast [secret]\n");
  }
});

test("hides a secret of several lines line by line, also in an unfinished line", () => {
  const key = "-----BEGIN-----\nabcdefgh\n-----END-----";
  expect(collect([key], [`${key}\n`])).not.toContain("abcdefgh");
  const long = "x".repeat(40_000);
  expect(collect(["s3cret-s3cret"], [long, "s3cret-", "s3cret", long])).not.toContain("s3cret-");
});

test("replaces NUL characters, which no row can hold", () => {
  expect(collect([], ["a\0b", "\0\n"])).toBe("a\u{fffd}b\u{fffd}\n");
});

test("keeps common words, even if they are secrets", () => {
  expect(collect(["on", "", "1"], ["1 on 1\n"])).toBe("1 on 1\n");
});

test("hides text that the server added to a command", () => {
  expect(collect([], ["STEP 2/2: RUN --mount=ours true\n"], ["--mount=ours "])).toBe("STEP 2/2: RUN true\n");
});
