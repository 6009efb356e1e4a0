import fc from "fast-check";
import { expect, test } from "vitest";
import { Splitter, type SplitLine } from "./line-splitter.ts";

interface Piece {
  stream: "stdout" | "stderr";
  data: Buffer;
  offset: number;
}

const pieces = fc
  .array(
    fc.record({
      stream: fc.constantFrom("stdout" as const, "stderr" as const),
      text: fc.string({ unit: fc.constantFrom("a", "b", "\n", "é", "漢") }),
    }),
    { maxLength: 20 },
  )
  .map((said) => {
    let offset = 0;
    return said.map(({ stream, text }): Piece => {
      const data = Buffer.from(text);
      const piece = { stream, data, offset };
      offset += data.length;
      return piece;
    });
  });

function texts(lines: readonly SplitLine[], stream: Piece["stream"]): string[] {
  return lines.filter((line) => line.stream === stream).map(({ text }) => text);
}

function from(said: readonly Piece[], at: number): Piece[] {
  return said.flatMap(({ stream, data, offset }) =>
    offset + data.length <= at
      ? []
      : [
          {
            stream,
            data: data.subarray(Math.max(0, at - offset)),
            offset: Math.max(at, offset),
          },
        ],
  );
}

test("returns each line of both streams once when reading resumes after any line", () => {
  fc.assert(
    fc.property(pieces, fc.nat(), (said, nth) => {
      const whole = new Splitter();
      const all = said.flatMap(({ stream, data, offset }) => whole.push(stream, data, offset));
      const seen = all.slice(0, all.length === 0 ? 0 : nth % (all.length + 1));
      const last = seen.at(-1);
      const next = new Splitter(last?.position);
      const rest = from(said, last?.position.next ?? 0).flatMap(({ stream, data, offset }) =>
        next.push(stream, data, offset),
      );
      for (const stream of ["stdout", "stderr"] as const) {
        expect([...texts(seen, stream), ...texts(rest, stream)]).toEqual(texts(all, stream));
      }
    }),
  );
});

test("cuts a long line between characters, and replaces invalid bytes", () => {
  const splitter = new Splitter();
  const long = Buffer.from("漢".repeat(10_000));
  const lines = splitter.push("stdout", long, 0);
  lines.push(...splitter.push("stdout", Buffer.from([0xff, 0, 10]), long.length));
  expect(
    lines
      .map(({ text }) => text)
      .join("")
      .replaceAll("\u{fffd}", ""),
  ).toBe("漢".repeat(10_000));
  expect(Math.max(...lines.map(({ text }) => Buffer.byteLength(text)))).toBeLessThanOrEqual(8 * 1024 + 8);
});

test("returns an unfinished line at the end of the process", () => {
  const splitter = new Splitter();
  splitter.push("stderr", Buffer.from("the last word"), 0);
  expect(splitter.end()).toMatchObject([{ stream: "stderr", text: "the last word" }]);
});
