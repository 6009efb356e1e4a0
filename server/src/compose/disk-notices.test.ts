import { expect, test } from "vitest";
import type { DiskHold } from "#machines/disk/guard.ts";
import { makePerson } from "../../test/factories.ts";
import { testDatabase } from "../../test/harness.ts";
import { announceDiskHold } from "./disk-notices.ts";

const { db } = await testDatabase();

test("writes an audit entry and a notification for the workspace of a frozen machine", async () => {
  const { workspace } = await makePerson(db);
  const target = { kind: "sandbox", id: "sbx_full", label: "sbx_full" };
  const machine = { id: "m0000000000000000000" } as DiskHold["machine"];
  const hold = { machine, isEnded: false, freeBytes: 5, writtenBytes: 7 };
  await announceDiskHold({ db })({ workspaceId: workspace.id, target }, hold);
  expect(await db.selectFrom("activity").selectAll().execute()).toMatchObject([
    {
      action: "machine.frozen",
      actor_kind: "system",
      target_id: "sbx_full",
      workspace_id: workspace.id,
      detail: { machine: machine.id, free_bytes: 5, written_bytes: 7 },
    },
  ]);
  expect(await db.selectFrom("notifications").selectAll().execute()).toMatchObject([
    {
      kind: "disk_short",
      workspace_id: workspace.id,
      title: "sbx_full was frozen: the server's disk is almost full",
    },
  ]);
});
