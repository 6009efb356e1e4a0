import { expect, test } from "vitest";
import { UndoStack } from "./undo.ts";

test("runs undos in reverse order, and continues after a failed undo", async () => {
  const order: string[] = [];
  const undo = new UndoStack();
  undo.add("first", async () => order.push("first"));
  undo.add("second", () => Promise.reject(new Error("no")));
  undo.add("third", async () => order.push("third"));
  expect(await undo.unwind()).toMatchObject([{ name: "second" }]);
  expect(order).toEqual(["third", "first"]);
});

test("runs no undo after commit", async () => {
  const undo = new UndoStack();
  undo.add("never", () => Promise.reject(new Error("ran")));
  undo.commit();
  expect(await undo.unwind()).toEqual([]);
});
