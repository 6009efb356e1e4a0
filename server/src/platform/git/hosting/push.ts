/**
 * Queues deployments after a push to a hosted repository. New commits are the difference between the repository's
 * branches and the heads already handled (`git_heads`). The difference is computed after every push, before the pusher
 * sees success, and once more at the server's start. So if the server dies during a push, the next server deploys the
 * commits.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import { DomainError } from "#lib/errors.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { KeyedMutex } from "#lib/concurrency/keyed-mutex.ts";
import { createRepository, headsOf, sweepRepository } from "./repositories.ts";
import {
  deleteHeads,
  followedBranches,
  listHeads,
  listHosted,
  type ProjectRow,
  saveDelivery,
  saveHead,
} from "../store.ts";

export interface PushedBranch {
  projectId: string;
  branch: string;
  sha: string;
  actor: Actor;
}

/** Functions of deployments that a push needs. */
export interface Deployments {
  /** Queues a deployment in every environment that follows the branch, and returns the deployments. */
  pushed(push: PushedBranch): Promise<readonly { id: string; host_label: string }[]>;
  /** Yields the log and the states of a deployment until its end. */
  follow(
    id: string,
    signal: AbortSignal,
  ): AsyncIterable<{ step: string; text: string } | { status: string; error: string | null }>;
  /** True if the environment of this deployment serves some deployment. */
  isServed(id: string): Promise<boolean>;
}

export interface PushOutcome {
  /** Lines of text for the pusher. */
  lines: string[];
  deployments: { id: string; host_label: string }[];
}

type Needs = Pick<App, "config" | "db" | "clock" | "log">;

export class Pushes {
  readonly #app: Needs;
  readonly #deployments: Deployments;
  readonly #turns = new KeyedMutex();

  constructor(app: Needs, deployments: Deployments) {
    this.#app = app;
    this.#deployments = deployments;
  }

  /** Deploys every new commit of the repository. Calls for one project run one after the other. */
  deployNewCommits(project: ProjectRow, actor: Actor): Promise<PushOutcome> {
    return this.#turns.run(project.id, () => this.#deployNewCommits(project, actor));
  }

  /** Deploys the commits of pushes during which an earlier server died. Runs before this server accepts a push. */
  async catchUp(): Promise<void> {
    for (const project of await listHosted(this.#app.db)) {
      await this.#catchUpWith(project).catch((error: unknown) => {
        this.#app.log.error({ error, project: project.id }, "handling pushed commits failed");
      });
    }
  }

  follow: Deployments["follow"] = (id, signal) => this.#deployments.follow(id, signal);

  isServed: Deployments["isServed"] = (id) => this.#deployments.isServed(id);

  async #catchUpWith(project: ProjectRow): Promise<void> {
    await createRepository(this.#app, project.id);
    await sweepRepository(this.#app, project.id);
    await this.deployNewCommits(project, systemActor("git"));
  }

  async #deployNewCommits(project: ProjectRow, actor: Actor): Promise<PushOutcome> {
    const { db, clock } = this.#app;
    const [heads, known] = await Promise.all([headsOf(this.#app, project.id), listHeads(db, project.id)]);
    const outcome: PushOutcome = { lines: [], deployments: [] };
    const changed = [...heads].filter(([branch, sha]) => known.get(branch) !== sha);
    const followed = changed.length === 0 ? [] : await followedBranches(db, project.id);
    for (const [branch, sha] of changed) {
      await passKillPoint("git.push.before_deploy");
      const [lines, queued] = [outcome.lines.length, outcome.deployments.length];
      if (followed.includes(branch)) await this.#deploy(project, { branch, sha, actor }, outcome);
      else outcome.lines.push(...explainNotFollowed(branch, followed));
      await transaction(db, async (tx) => {
        await saveHead(tx, project.id, branch, sha);
        const isQueued = outcome.deployments.length > queued;
        const detail = isQueued ? `A deployment of ${branch} is queued.` : (outcome.lines[lines] ?? "");
        const delivery = { at: clock.now().toISOString(), event: "push", status: 202, detail };
        await saveDelivery(tx, project.id, delivery, null);
        await recordActivity(tx, actor, "repository.pushed", target(project), project.workspace_id, {
          branch,
          sha,
        });
      });
    }
    await deleteHeads(
      db,
      project.id,
      [...known.keys()].filter((branch) => !heads.has(branch)),
    );
    return outcome;
  }

  async #deploy(
    project: ProjectRow,
    push: Omit<PushedBranch, "projectId">,
    { lines, deployments }: PushOutcome,
  ): Promise<void> {
    if (!project.auto_deploy) {
      lines.push(`${push.branch} is stored and not deployed: auto-deploy is off for this project.`);
      return;
    }
    try {
      const queued = await this.#deployments.pushed({ ...push, projectId: project.id });
      deployments.push(...queued);
      if (queued.length === 0) lines.push(`${push.branch} is stored and not deployed.`);
    } catch (error) {
      // A refusal is final for this push. The commits are stored, and a request can deploy them later.
      if (!(error instanceof DomainError)) throw error;
      lines.push(`${push.branch} is stored and not deployed: ${error.detail}`);
    }
  }
}

const target = ({ id, name }: ProjectRow) => ({ kind: "project", id, label: name });

/**
 * Returns the explanation for a push that deploys nothing. Most often `master` is pushed to a project that deploys
 * `main`, or the reverse.
 */
function explainNotFollowed(branch: string, followed: readonly string[]): string[] {
  const [first] = followed;
  if (first === undefined) return [`${branch} is stored. The project has no environment to deploy it to.`];
  return [
    `${branch} is stored and not deployed: environments of this project follow ${followed.join(", ")}.`,
    `To deploy it, push it as one of them (git push <remote> ${branch}:${first}),`,
    `or set the branch of the project or of an environment to ${branch}.`,
  ];
}
