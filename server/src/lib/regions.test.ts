import { expect, test } from "vitest";
import { parseRegion, parseRegions } from "./regions.ts";

test("parses a code with an optional name and directory", () => {
  expect(parseRegion("eu-1")).toEqual({ code: "eu-1", name: "eu-1", directory: null });
  expect(parseRegion("eu-1=Frankfurt am Main")).toMatchObject({ name: "Frankfurt am Main", directory: null });
  expect(parseRegion("us-1@/mnt/us")).toEqual({ code: "us-1", name: "us-1", directory: "/mnt/us" });
  expect(parseRegion("us-1=Ashburn@/mnt/us@2")).toMatchObject({ name: "Ashburn", directory: "/mnt/us@2" });
});

test.each(["", "EU", "-eu", "eu 1", "eu-1=", "eu-1@relative", "eu-1@", "../eu"])(
  "rejects %j as a region",
  (text) => {
    expect(parseRegion(text)).toBeUndefined();
  },
);

test("requires at least one region, with distinct codes and directories", () => {
  expect(parseRegions(["eu-1", "us-1@/mnt/us"])?.map(({ code }) => code)).toEqual(["eu-1", "us-1"]);
  expect(parseRegions([])).toBeUndefined();
  expect(parseRegions(["eu-1", "eu-1@/mnt"])).toBeUndefined();
  expect(parseRegions(["eu-1@/mnt", "us-1@/mnt"])).toBeUndefined();
  expect(parseRegions(["eu-1", "US"])).toBeUndefined();
});
