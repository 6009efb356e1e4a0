/**
 * Backups of add-ons. This folder owns which there are, where their bytes lie, when the next one is due, and what is
 * being restored. It promises that a backup is `completed` only after it was restored in an instance that was thrown
 * away and found to be what the database held; that its bytes are of one moment, however much was written meanwhile;
 * that one which failed leaves none; and that a restore which fails leaves what was there before. Bytes are streamed:
 * of a database's size nothing is in this process' memory, nor on a disk but the store's.
 */
import { payerOf } from "#accounts/payers.ts";
import type { Blobs } from "#lib/blobs/blobs.ts";
import type { Tasks } from "#jobs/jobs.ts";
import { FairJobs } from "#jobs/fair-jobs.ts";
import { addJob } from "#jobs/jobs.ts";
import type { Addons } from "../addons/addons.ts";
import { addonPrefix } from "./blobs.ts";
import { carryOut } from "./jobs/run-backup.ts";
import { carryOutRestore } from "./jobs/run-restore.ts";
import type { BackupEngines, BackupsContext } from "./context.ts";
import { postgres } from "./engines/postgres.ts";
import { redis } from "./engines/redis.ts";
import { tick } from "./jobs/schedule.ts";
import { findWorkspace, isHeld, listUnderWay } from "./store.ts";
import { removeUnwanted } from "./jobs/prune.ts";
import {
  backupTask,
  type Later,
  queueBackup,
  queueRestore,
  restoreTask,
  retryAfterMs,
  sweepTask,
  tickTask,
} from "./jobs/tasks.ts";

const ownEngines: BackupEngines = { postgres, redis };
/** Maximum of concurrent jobs. Each runs a second database instance and uses the disk fully. */
const atOnce = 2;

/** Delay before a waiting job runs from the job table, in case this process died. */
const deferMs = 60_000;

interface Attempt {
  id: string;
  attempt: number;
  workspaceId: string | undefined;
  work: (stops: AbortSignal) => Promise<void>;
  queue: (later: Later) => Promise<void>;
}

export class Backups implements BackupsContext {
  readonly app: BackupsContext["app"];
  readonly addons: Addons;
  readonly blobs: Blobs;
  readonly engines: BackupEngines;
  /** What this process carries out; a job of an earlier one may come late. */
  readonly #underWay = new Map<string, Promise<void>>();
  readonly #jobs = new FairJobs({ limit: atOnce, keepsOneFree: true });

  /** `engines` are a test's own, or those there are. */
  constructor(app: BackupsContext["app"], addons: Addons, blobs: Blobs, engines: BackupEngines = ownEngines) {
    this.app = app;
    this.addons = addons;
    this.blobs = blobs;
    this.engines = engines;
  }

  readonly tasks: Tasks = {
    [backupTask]: async ({ backup: id, attempt = 0 }: { backup: string; attempt?: number }, { signal }) => {
      const { db } = this.app;
      const work = (stops: AbortSignal) => this.#once(id, () => carryOut(this, id, stops));
      const queue = (later: Later) => queueBackup(db, id, later);
      const workspaceId = await findWorkspace(db, { backup: id });
      await this.#inTurn({ id, attempt, workspaceId, work, queue }, signal);
    },
    [restoreTask]: async (
      { restore: id, attempt = 0 }: { restore: string; attempt?: number },
      { signal },
    ) => {
      const { db } = this.app;
      const work = (stops: AbortSignal) => this.#once(id, () => carryOutRestore(this, id, stops));
      const queue = (later: Later) => queueRestore(db, id, later);
      const workspaceId = await findWorkspace(db, { restore: id });
      await this.#inTurn({ id, attempt, workspaceId, work, queue }, signal);
    },
    [tickTask]: () => tick(this),
    [sweepTask]: () => removeUnwanted(this),
  };

  /** After the add-ons: goes on with what an earlier server had under way, and begins to look at what is due. */
  async start(): Promise<void> {
    const { db, log } = this.app;
    const { backups, restores } = await listUnderWay(db);
    for (const backup of backups) await queueBackup(db, backup);
    for (const restore of restores) await queueRestore(db, restore);
    await addJob(db, tickTask, {}, { key: tickTask });
    // By the clock of the store, which is not ours: what is begun from now on is younger than that.
    const before = new Date(Date.now() - 60_000);
    this.blobs.deleteUnfinished(before).catch((error: unknown) => {
      log.warn({ error }, "what unfinished backups left in their store could not be looked for");
    });
  }

  /** Their bytes are gone when this returns, and no more come: its add-on is deleted. Safe to repeat. */
  async dropBackups(addonId: string): Promise<void> {
    const { backups, restores } = await listUnderWay(this.app.db, addonId);
    // They notice that it is gone.
    for (const id of [...backups, ...restores]) await this.#underWay.get(id);
    for (const key of await this.blobs.list(addonPrefix(addonId))) await this.blobs.delete(key);
  }

  /** What is kept before a restore, within that one's job; the same one is not carried out twice at a time. */
  async keep(id: string, signal: AbortSignal): Promise<void> {
    await (this.#underWay.get(id) ?? this.#once(id, () => carryOut(this, id, signal)));
  }

  /** Runs a job when its payer's turn comes. A failure of this server queues it again. */
  async #inTurn({ id, attempt, workspaceId, work, queue }: Attempt, signal: AbortSignal): Promise<void> {
    const { db, clock, log } = this.app;
    const inMs = (ms: number) => new Date(clock.now().getTime() + ms);
    const isSuspended = async () => workspaceId !== undefined && (await isHeld(db, workspaceId));
    const later = () => queue({ attempt, runAt: inMs(deferMs) });
    // A frozen database cannot be backed up or restored.
    if (await isSuspended()) return later();
    const job = {
      // Without an owner, the add-on is deleted and there is nothing to back up.
      owner: workspaceId === undefined ? "" : await payerOf(db, workspaceId),
      id,
      work: (stops: AbortSignal) =>
        work(stops)
          // Queued again, because a suspension may have interrupted it. A job for an ended one does nothing.
          .then(async () => ((await isSuspended()) ? later() : undefined))
          .catch(async (error: unknown) => {
            log.warn({ error, id }, "a backup or a restore is tried again later");
            await queue({ attempt: attempt + 1, runAt: inMs(retryAfterMs(attempt + 1)) });
          }),
      defer: later,
    };
    await this.#jobs.run(job, signal);
  }

  #once(id: string, work: () => Promise<void>): Promise<void> {
    const running = this.#underWay.get(id);
    if (running) return Promise.resolve();
    const done = work().finally(() => this.#underWay.delete(id));
    this.#underWay.set(
      id,
      done.catch(() => {}),
    );
    return done;
  }
}
