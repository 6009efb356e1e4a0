/**
 * Backups of add-ons. This folder decides which backups exist, where their bytes are, when the next one is due, and
 * what is restored.
 *
 * A backup is `completed` only after its test restore, into a throwaway instance, matched the database. The bytes are a
 * snapshot of one moment, even under writes. A failed backup leaves no bytes. A failed restore keeps the earlier data.
 * Bytes are streamed: no whole database is ever in this process's memory, or on a disk other than the store's.
 */
import { payerOf } from "#accounts/payers.ts";
import type { Blobs } from "#lib/blobs/blobs.ts";
import type { Tasks } from "#jobs/jobs.ts";
import { FairJobs } from "#jobs/fair-jobs.ts";
import { addJob } from "#jobs/jobs.ts";
import type { Addons } from "../addons/addons.ts";
import { addonPrefix } from "./blobs.ts";
import { runBackup } from "./jobs/run-backup.ts";
import { runRestore } from "./jobs/run-restore.ts";
import type { BackupEngines, BackupsContext } from "./context.ts";
import { postgres } from "./engines/postgres.ts";
import { redis } from "./engines/redis.ts";
import { tick } from "./jobs/schedule.ts";
import { findWorkspace, isHeld, listUnfinished } from "./store.ts";
import { pruneBackups } from "./jobs/prune.ts";
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
/** Limit of parallel jobs. Each runs a second database instance and uses the disk fully. */
const atOnce = 2;

/** Delay in milliseconds before a waiting job runs from the job table, in case this process has died. */
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
  /** Jobs of this process by id. A job of an earlier process may still run as well. */
  readonly #running = new Map<string, Promise<void>>();
  readonly #jobs = new FairJobs({ limit: atOnce, keepsOneFree: true });

  /** Tests pass their own `engines`. */
  constructor(app: BackupsContext["app"], addons: Addons, blobs: Blobs, engines: BackupEngines = ownEngines) {
    this.app = app;
    this.addons = addons;
    this.blobs = blobs;
    this.engines = engines;
  }

  readonly tasks: Tasks = {
    [backupTask]: async ({ backup: id, attempt = 0 }: { backup: string; attempt?: number }, { signal }) => {
      const { db } = this.app;
      const work = (stops: AbortSignal) => this.#runOnce(id, () => runBackup(this, id, stops));
      const queue = (later: Later) => queueBackup(db, id, later);
      const workspaceId = await findWorkspace(db, { backup: id });
      await this.#runInTurn({ id, attempt, workspaceId, work, queue }, signal);
    },
    [restoreTask]: async (
      { restore: id, attempt = 0 }: { restore: string; attempt?: number },
      { signal },
    ) => {
      const { db } = this.app;
      const work = (stops: AbortSignal) => this.#runOnce(id, () => runRestore(this, id, stops));
      const queue = (later: Later) => queueRestore(db, id, later);
      const workspaceId = await findWorkspace(db, { restore: id });
      await this.#runInTurn({ id, attempt, workspaceId, work, queue }, signal);
    },
    [tickTask]: () => tick(this),
    [sweepTask]: () => pruneBackups(this),
  };

  /**
   * Queues the unfinished jobs of an earlier server again, and starts the timer. Runs after the add-ons have started.
   */
  async start(): Promise<void> {
    const { db, log } = this.app;
    const { backups, restores } = await listUnfinished(db);
    for (const backup of backups) await queueBackup(db, backup);
    for (const restore of restores) await queueRestore(db, restore);
    await addJob(db, tickTask, {}, { key: tickTask });
    // The store's clock may differ from ours by less than this margin. So no unfinished backup of this server is
    // deleted.
    const before = new Date(Date.now() - 60_000);
    this.blobs.deleteUnfinished(before).catch((error: unknown) => {
      log.warn({ error }, "listing leftovers of unfinished backups in the store failed");
    });
  }

  /** Deletes all backups of a deleted add-on with their bytes, and prevents new ones. Safe to repeat. */
  async deleteBackups(addonId: string): Promise<void> {
    const { backups, restores } = await listUnfinished(this.app.db, addonId);
    // A running job ends by itself after the deletion.
    for (const id of [...backups, ...restores]) await this.#running.get(id);
    for (const key of await this.blobs.list(addonPrefix(addonId))) await this.blobs.delete(key);
  }

  /** Makes the safety backup, within the restore's job. Concurrent calls with one id share a run. */
  async makeSafetyBackup(id: string, signal: AbortSignal): Promise<void> {
    await (this.#running.get(id) ?? this.#runOnce(id, () => runBackup(this, id, signal)));
  }

  /** Runs a job when its payer's turn comes. After a failure of this server, the job is queued again. */
  async #runInTurn({ id, attempt, workspaceId, work, queue }: Attempt, signal: AbortSignal): Promise<void> {
    const { db, clock, log } = this.app;
    const inMs = (ms: number) => new Date(clock.now().getTime() + ms);
    const isSuspended = async () => workspaceId !== undefined && (await isHeld(db, workspaceId));
    const later = () => queue({ attempt, runAt: inMs(deferMs) });
    // A frozen database cannot be backed up or restored.
    if (await isSuspended()) return later();
    const job = {
      // Without a workspace, the add-on is deleted and there is nothing to back up.
      owner: workspaceId === undefined ? "" : await payerOf(db, workspaceId),
      id,
      work: (stops: AbortSignal) =>
        work(stops)
          // A suspension may have interrupted the job, so it is queued again. The job of an ended backup does nothing.
          .then(async () => ((await isSuspended()) ? later() : undefined))
          .catch(async (error: unknown) => {
            log.warn({ error, id }, "a backup or restore failed and is queued again");
            await queue({ attempt: attempt + 1, runAt: inMs(retryAfterMs(attempt + 1)) });
          }),
      defer: later,
    };
    await this.#jobs.run(job, signal);
  }

  #runOnce(id: string, work: () => Promise<void>): Promise<void> {
    const running = this.#running.get(id);
    if (running) return Promise.resolve();
    const done = work().finally(() => this.#running.delete(id));
    this.#running.set(
      id,
      done.catch(() => {}),
    );
    return done;
  }
}
