import { expect, test } from "vitest";
import { heldTags, surplus } from "./retention.ts";
import type { ImageUse } from "./store.ts";

const now = new Date("2030-06-01T00:00:00Z");
const day = 24 * 60 * 60_000;
const maxBytes = Number.POSITIVE_INFINITY;

/** Returns the images b<count> down to b1, made a day apart, with 100 bytes each. */
function images(count: number) {
  return Array.from({ length: count }, (_, index) => ({
    id: `app_${count - index}`,
    number: count - index,
    deployment_id: `d${count - index}`,
    created_at: new Date(now.getTime() - index * day),
    size_bytes: 100,
  }));
}

function use(number: number, more: Partial<ImageUse> = {}): ImageUse {
  return {
    tag: `b${number}`,
    deploymentId: `d${number}`,
    environmentId: "production",
    isLive: false,
    isUnderWay: false,
    ...more,
  };
}

test("keeps an environment's live image and its last three, however old", () => {
  const uses = [
    use(5, { isLive: true }),
    use(4),
    use(3),
    use(2),
    use(1, { environmentId: "dev", isLive: true }),
  ];
  const held = heldTags(images(5), uses);
  expect([...held.live]).toEqual(["b5", "b1"]);
  expect([...held.pinned].toSorted()).toEqual(["b1", "b3", "b4", "b5"]);
  const old = new Date(now.getTime() + 365 * day);
  expect(surplus(images(5), uses, { now: old, maxBytes })).toEqual(["app_2"]);
});

test("counts the image of several rollbacks once", () => {
  const uses = [use(5, { isLive: true }), use(5), use(5), use(4), use(3), use(2)];
  expect([...heldTags(images(5), uses).pinned]).toEqual(["b5", "b4", "b3"]);
});

test("keeps an image that its deployment has not recorded yet", () => {
  const uses = [use(3, { tag: null, isUnderWay: true })];
  expect([...heldTags(images(3), uses).live]).toEqual(["b3"]);
});

test("keeps the ten newest other images for thirty days, within the byte limit", () => {
  expect(surplus(images(12), [], { now, maxBytes })).toEqual(["app_2", "app_1"]);
  const later = new Date(now.getTime() + 29 * day);
  expect(surplus(images(3), [], { now: later, maxBytes })).toEqual(["app_1"]);
  expect(surplus(images(3), [use(3)], { now, maxBytes: 150 })).toEqual(["app_1"]);
});
