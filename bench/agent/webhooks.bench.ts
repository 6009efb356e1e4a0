/**
 * Webhook deliveries at 200 events per second from 50 sandboxes, and again with a `kill -9` of the server during the
 * deliveries. This process inserts the events, because no host could run so many machines.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { systemActor } from "@kontor/server/accounts/activity/activity.ts";
import { openDatabase } from "@kontor/server/db/db.ts";
import type { Database } from "@kontor/server/schema.ts";
import type { Db } from "@kontor/server/schema.ts";
import { ensureEmbedded } from "@kontor/server/db/embedded/ensure-embedded.ts";
import { recordEvent } from "@kontor/server/sandbox/events/events.ts";
import { type ReceivedDelivery, startReceiver } from "@kontor/server/sandbox/testing/receiver.ts";
import type { Server } from "../../e2e/support/server.ts";
import type { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { percentile } from "../support/measure.ts";
import { withOwnServer, withoutPool } from "../support/own-server.ts";

export const name = "webhooks";

const sandboxes = 50;
const perSecond = 200;
const seconds = 20;
const perSandbox = (perSecond * seconds) / sandboxes;
const arriveWithinMs = 120_000;

export async function run(context: BenchContext): Promise<void> {
  const env = { ...withoutPool, KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8" };
  await withOwnServer(context, env, async (server, api) => {
    await measure(context, server, api, { what: `${perSecond} events/s`, kill: false });
    await measure(context, server, api, { what: `${perSecond} events/s, kill -9 amid`, kill: true });
  });
}

async function measure(
  context: BenchContext,
  server: Server,
  api: Api,
  { what, kill }: { what: string; kill: boolean },
): Promise<void> {
  context.progress(what);
  const receiver = await startReceiver();
  const arrivals: { got: ReceivedDelivery; at: number }[] = [];
  receiver.answer = (got, response) => {
    arrivals.push({ got, at: Date.now() });
    response.writeHead(204).end();
  };
  const webhook = await api.json<{ id: string }>("POST", "/v1/sandboxes/webhooks", 201, {
    url: receiver.url,
  });
  const { connection } = await ensureEmbedded(server.dataDir);
  const database = openDatabase<Database>(connection, { maxConnections: 8, onError: () => {} });
  try {
    const { workspace_id } = await database.db
      .selectFrom("sandbox_webhooks")
      .select("workspace_id")
      .where("id", "=", webhook.id)
      .executeTakeFirstOrThrow();
    const writing = Promise.all(
      Array.from({ length: sandboxes }, (_, index) =>
        writeEvents(database.db, workspace_id, `sbx_bench${index}`, index),
      ),
    );
    if (kill) {
      await sleep((seconds * 1000) / 2);
      await server.kill9();
      await server.start();
    }
    await writing;
    const written = Date.now();
    const wanted = perSecond * seconds;
    const distinct = () => new Set(arrivals.map(({ got }) => got.json.delivery_id)).size;
    while (distinct() < wanted && Date.now() < written + arriveWithinMs) await sleep(50);

    const last = Math.max(...arrivals.map(({ at }) => at));
    const delays = arrivals.map(({ got, at }) => at - Date.parse(got.json.timestamp));
    const bar = { atMost: 0 };
    const note = `n=${wanted}, ${sandboxes} sandboxes, one webhook`;
    context.report({ what: `${what}: lost`, value: wanted - distinct(), unit: "deliveries", bar, note });
    context.report({
      what: `${what}: out of order`,
      value: countOutOfOrder(arrivals),
      unit: "deliveries",
      bar,
    });
    context.report({
      what: `${what}: delivered again`,
      value: arrivals.length - distinct(),
      unit: "deliveries",
      ...(kill ? { note: "under way when the server was killed" } : { bar }),
    });
    context.report({ what: `${what}: event to delivery, p50`, value: percentile(delays, 50), unit: "ms" });
    context.report({ what: `${what}: event to delivery, p99`, value: percentile(delays, 99), unit: "ms" });
    context.report({ what: `${what}: last one after the last event`, value: last - written, unit: "ms" });
  } finally {
    await api.json("DELETE", `/v1/sandboxes/webhooks/${webhook.id}`, 200).catch(() => {});
    await database.close();
    await receiver.close();
  }
}

/** Inserts the events of one sandbox in sequence, at an even rate. */
async function writeEvents(db: Db, workspaceId: string, sandboxId: string, index: number): Promise<void> {
  const everyMs = (sandboxes / perSecond) * 1000;
  const start = Date.now() + (everyMs * index) / sandboxes;
  for (let n = 0; n < perSandbox; n += 1) {
    await sleep(Math.max(0, start + n * everyMs - Date.now()));
    await db.transaction().execute((tx) =>
      recordEvent(tx, {
        workspaceId,
        event: "sandbox.resumed",
        sandboxId,
        at: new Date(),
        outcome: "ok",
        summary: "Resumed.",
        detail: { n },
        actor: systemActor("a benchmark"),
      }),
    );
  }
}

/** Counts a sandbox's events that first arrived after a later event. */
function countOutOfOrder(arrivals: readonly { got: ReceivedDelivery }[]): number {
  const seen = new Set<string>();
  const latest = new Map<unknown, number>();
  let count = 0;
  for (const { got } of arrivals) {
    if (seen.has(got.json.delivery_id)) continue;
    seen.add(got.json.delivery_id);
    const { sandbox_id, detail } = got.json.data as { sandbox_id: string; detail: { n: number } };
    if (detail.n < (latest.get(sandbox_id) ?? -1)) count += 1;
    latest.set(sandbox_id, Math.max(detail.n, latest.get(sandbox_id) ?? -1));
  }
  return count;
}
