import fc from "fast-check";
import { expect, test } from "vitest";
import { FrameDecoder, MAX_FRAME_BYTES, encodeFrame, encodeHeader } from "./frames.ts";
import type { Frame } from "./frames.ts";

function decodeAll(pieces: Buffer[], streamed?: number): Frame[] {
  const decoder = new FrameDecoder(streamed);
  const frames: Frame[] = [];
  for (const piece of pieces) {
    decoder.push(piece);
    for (let frame = decoder.next(); frame; frame = decoder.next()) frames.push(frame);
  }
  return frames;
}

function cutAt(bytes: Buffer, at: number[]): Buffer[] {
  const ends = [...at.map((n) => n % (bytes.length + 1)), bytes.length].toSorted((a, b) => a - b);
  return ends.map((end, i) => bytes.subarray(ends[i - 1] ?? 0, end));
}

const frames = fc.array(
  fc.record({ type: fc.integer({ min: 0, max: 255 }), payload: fc.uint8Array({ maxLength: 300 }) }),
);

test("decodes frames from any pieces of the stream", () => {
  fc.assert(
    fc.property(frames, fc.array(fc.nat()), (sent, cuts) => {
      const wanted = sent.map(({ type, payload }) => ({ type, payload: Buffer.from(payload) }));
      const bytes = Buffer.concat(wanted.map(({ type, payload }) => encodeFrame(type, payload)));
      expect(decodeAll(cutAt(bytes, cuts))).toEqual(wanted);
    }),
  );
});

test("passes content on in pieces between whole frames, without loss", () => {
  const content = 7;
  const several = fc.array(
    fc.record({ type: fc.constantFrom(6, content), payload: fc.uint8Array({ maxLength: 300 }) }),
  );
  fc.assert(
    fc.property(several, fc.array(fc.nat()), (sent, cuts) => {
      const bytes = Buffer.concat(sent.map(({ type, payload }) => encodeFrame(type, Buffer.from(payload))));
      const got = decodeAll(cutAt(bytes, cuts), content);
      const of = (frames: { type: number; payload: Uint8Array }[], type: number) =>
        frames.filter((frame) => frame.type === type).map(({ payload }) => Buffer.from(payload));
      expect(of(got, 6)).toEqual(of(sent, 6));
      expect(Buffer.concat(of(got, content))).toEqual(Buffer.concat(of(sent, content)));
    }),
  );
  const whole = encodeFrame(content, Buffer.alloc(100));
  expect(decodeAll([whole.subarray(0, 50)], content)).toHaveLength(1);
});

test("decodes any bytes into frames within the limit, or rejects them", () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 200 })), (pieces) => {
      try {
        for (const { payload } of decodeAll(pieces.map((piece) => Buffer.from(piece))))
          expect(payload.length).toBeLessThanOrEqual(MAX_FRAME_BYTES);
      } catch (error) {
        expect(error).toMatchObject({ kind: "guest_protocol" });
      }
    }),
  );
});

test("accepts the largest frame, and rejects a larger frame before it buffers any byte of it", () => {
  expect(decodeAll([encodeFrame(1, Buffer.alloc(MAX_FRAME_BYTES))])).toHaveLength(1);
  expect(() => decodeAll([encodeHeader(1, MAX_FRAME_BYTES + 1)])).toThrow(/too long/);
});

test("returns the bytes after the last frame", () => {
  const decoder = new FrameDecoder();
  decoder.push(Buffer.concat([encodeFrame(1, Buffer.alloc(0)), Buffer.from("rest")]));
  expect(decoder.next()?.type).toBe(1);
  expect(decoder.rest().toString()).toBe("rest");
});
