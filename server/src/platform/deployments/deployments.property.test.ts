/**
 * Runs requests in random order, with failures and server crashes in between. At any time an environment has at most
 * one running and one queued deployment, and serves the deployment that was switched to last. Every deployment ends.
 *
 * `KONTOR_PROPERTY_RUNS` sets the number of random sequences. A failing sequence is printed with its seed.
 */
import assert from "node:assert/strict";
import fc from "fast-check";
import { test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import { DomainError } from "#lib/errors.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../test/harness.ts";
import { cancelDeployment } from "./request/cancel.ts";
import { DeploymentFailed } from "./worker/reasons.ts";
import { deployPush } from "./request/deploy.ts";
import { rollback } from "./request/rollback.ts";
import { isOver } from "./states.ts";
import {
  queueDeployment,
  makeProject,
  personWithPlan,
  testDeployments,
  type TestProject,
} from "./testing/deployments-app.ts";

const { db } = await testDatabase();
const host = await testDeployments(db);
const actor = await personWithPlan(db, "team");
const runs = Number(process.env["KONTOR_PROPERTY_RUNS"] ?? 10);

/** Steps of the fake pipeline. `proof` checks a deployment that an earlier server switched to. */
const steps = ["clone", "build", "release", "health", "route", "proof"] as const;
const points = ["cloned", "built", "released", "healthy", "switched", "ended"] as const;

const action = fc.oneof(
  fc.record({ kind: fc.constant("deploy" as const) }),
  fc.record({ kind: fc.constant("push" as const), sha: fc.nat(9) }),
  fc.record({ kind: fc.constant("cancel" as const), nth: fc.nat(20) }),
  fc.record({ kind: fc.constant("rollback" as const), nth: fc.nat(20), isForced: fc.boolean() }),
  fc.record({ kind: fc.constant("prune" as const), nth: fc.nat(20) }),
);
type Action = typeof action extends fc.Arbitrary<infer T> ? T : never;

const event = fc.oneof(
  { weight: 3, arbitrary: action },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("carry out" as const),
      // Requests that arrive during a step, and the step that fails.
      meanwhile: fc.array(fc.tuple(fc.constantFrom(...steps), action), { maxLength: 3 }),
      fails: fc.option(fc.constantFrom(...steps)),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant("die" as const), at: fc.constantFrom(...points) }),
  },
);
type Event = typeof event extends fc.Arbitrary<infer T> ? T : never;

const refusals = new Set([
  "deployment_in_progress",
  "deployment_not_cancellable",
  "image_pruned",
  "not_rollbackable",
]);

class Model {
  readonly #actor: Actor;
  readonly #project: TestProject;

  constructor(who: Actor, project: TestProject) {
    this.#actor = who;
    this.#project = project;
  }

  async play(step: Event): Promise<void> {
    if (step.kind === "die") await host.dieAt(`deploy.${step.at}`);
    else if (step.kind === "carry out") await this.#carryOut(step.meanwhile, step.fails);
    else await this.#act(step);
    await this.#check();
  }

  /** Runs the queue until it is empty. */
  async settle(): Promise<void> {
    await host.restart();
    await host.run();
    await this.#check();
    const rows = await this.#rows();
    assert.deepEqual(
      rows.filter(({ status }) => !isOver(status)),
      [],
      "one never ended",
    );
  }

  async #carryOut(
    meanwhile: (readonly [(typeof steps)[number], Action])[],
    fails: (typeof steps)[number] | null,
  ): Promise<void> {
    for (const step of steps) {
      const mine = meanwhile.filter(([at]) => at === step).map(([, one]) => one);
      host.pipeline.during[step] = async () => {
        for (const one of mine.splice(0)) await this.#act(one);
        if (fails === step) throw new DeploymentFailed("no luck.");
      };
    }
    await host.run();
    for (const step of steps) delete host.pipeline.during[step];
  }

  async #act(step: Action): Promise<void> {
    try {
      await this.#call(step);
    } catch (error) {
      assert(error instanceof DomainError && refusals.has(error.code), String(error));
    }
  }

  async #call(step: Action): Promise<unknown> {
    const { app, pipeline, stage } = host;
    if (step.kind === "deploy") return queueDeployment(host, this.#actor, this.#project);
    if (step.kind === "push") {
      const push = { projectId: this.#project.id, branch: "main", sha: String(step.sha).repeat(40) };
      return deployPush(app, { ...push, actor: this.#actor });
    }
    const rows = await this.#rows();
    const row = rows[step.nth % Math.max(1, rows.length)];
    if (!row) return undefined;
    if (step.kind === "cancel") return cancelDeployment(app, this.#actor, row.id);
    if (step.kind === "prune") return stage.images.delete(row.image_tag ?? "");
    const options = { allowRebuild: step.isForced, restoreEnv: false };
    return rollback(app, pipeline, this.#actor, row.id, options);
  }

  #rows() {
    return db
      .selectFrom("deployments")
      .selectAll()
      .where("project_id", "=", this.#project.id)
      .orderBy("number")
      .execute();
  }

  async #check(): Promise<void> {
    const { environmentId } = this.#project;
    const rows = await this.#rows();
    const count = (...statuses: string[]) => rows.filter(({ status }) => statuses.includes(status)).length;
    assert(count("building", "deploying") <= 1, "two are under way");
    assert(count("queued") <= 1, "two wait");
    assert(count("live") <= 1, "two are live");
    const { live_deployment_id } = await db
      .selectFrom("environments")
      .select("live_deployment_id")
      .where("id", "=", environmentId)
      .executeTakeFirstOrThrow();
    assert.equal(live_deployment_id, host.stage.serving.get(environmentId) ?? null, "another is served");
    const live = rows.find(({ status }) => status === "live");
    // An earlier server switched to this deployment, but the app's response is not checked yet, or is missing.
    const isUnproven = rows.some(
      ({ id, status, attempts }) =>
        id === live_deployment_id && (status === "deploying" || (status === "failed" && attempts > 1)),
    );
    if (!isUnproven) assert.equal(live?.id ?? null, live_deployment_id, "what is served is not live");
    assert.equal(host.stage.candidates.size, 0, "a candidate was left");
  }
}

test(
  "keeps at most one deployment running and one live, and ends every deployment, for random requests, failures and crashes",
  async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(event, { minLength: 5, maxLength: 20 }), async (events) => {
        const model = new Model(actor, await makeProject(host, actor));
        try {
          for (const step of events) await model.play(step);
        } finally {
          onKillPoint(undefined);
          await model.settle();
          await db.deleteFrom("projects").execute();
        }
      }),
      { numRuns: runs, endOnFailure: true },
    );
  },
  60_000 + runs * 10_000,
);
