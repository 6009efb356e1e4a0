/** Fake pipeline for tests. Code, images and apps exist by name only, and fail or wait as a test sets. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { App } from "#app.ts";
import type { BuiltImage, Candidate, Pipeline, PullRequest, Work } from "../pipeline/pipeline.ts";
import type { StepName } from "../states.ts";

type FakeStep = Exclude<StepName, "detect"> | "proof";

/** State that outlives the server: the images, and the apps that serve. */
export interface Stage {
  images: Map<string, BuiltImage>;
  /** Tags of images by project and build key. */
  byKey: Map<string, string>;
  /** Serving deployments by environment. */
  serving: Map<string, string>;
  /** Start parameters of apps by deployment. */
  started: Map<string, { argv: string[]; port: number; env: Record<string, string>; image: string }>;
  /** Deployments whose app runs and does not serve its environment. */
  candidates: Set<string>;
  builds: number;
}

export function newStage(): Stage {
  return {
    images: new Map(),
    byKey: new Map(),
    serving: new Map(),
    started: new Map(),
    candidates: new Set(),
    builds: 0,
  };
}

const silent = { log: async () => {}, progress: () => {} };

const keyOf = (projectId: string, buildKey: Buffer) => `${projectId} ${buildKey.toString("hex")}`;

export class FakePipeline implements Pipeline {
  readonly #stage: Stage;
  /** Functions that run at the start of a step: they throw, wait or log. */
  readonly during: Partial<Record<FakeStep, (work: Work) => Promise<void>>> = {};

  /** Status of the health check. */
  status = 200;
  /** Command of the built images. */
  argv = ["serve"];
  /** Port of the built images. */
  port: number | null = 3000;
  /** True if images are found by their build key. */
  reuses = false;

  constructor(stage: Stage) {
    this.#stage = stage;
  }

  readonly checkout: Pipeline["checkout"] = async (_app, _project, { branch, sha, tag, into, ...work }) => {
    await work.log(`fetching ${sha ?? tag ?? branch}\n`);
    await this.during.clone?.(work);
    await writeFile(join(into, "index.html"), "hello");
    return { sha: sha ?? "f".repeat(40), message: "a change", author: "A. Author" };
  };

  readonly buildAppImage: Pipeline["buildAppImage"] = async (_app, request, work) => {
    this.#stage.builds += 1;
    await this.during.build?.(work);
    const tag = `d-${request.deploymentId}`;
    const run = { argv: this.argv, port: this.port, healthCheckPath: null, user: null, cwd: "/app", env: {} };
    const image = { imageId: `img_${tag}`, tag, digest: "sha256:0", sizeBytes: 1, run };
    this.#stage.images.set(tag, image);
    this.#stage.byKey.set(keyOf(request.projectId, request.buildKey), tag);
    return image;
  };

  /** Digest that the registry returns for every reference. */
  digest = `sha256:${"1".repeat(64)}`;
  /** References and credentials that were sent to the registry, in order. */
  readonly pulls: Pick<PullRequest, "reference" | "credential">[] = [];

  readonly findRegistryImage: Pipeline["findRegistryImage"] = async (
    _app,
    { reference, credential },
    work,
  ) => {
    await this.during.pull?.(work);
    this.pulls.push({ reference, credential });
    const { digest } = this;
    const manifest = { config: { mediaType: "", digest, size: 0 }, layers: [] };
    const bytes = Buffer.from("");
    return { reference, digest, manifestDigest: digest, bytes, manifest, key: Buffer.from(digest) };
  };

  readonly pullAppImage: Pipeline["pullAppImage"] = async (app, { found, ...request }, work) =>
    this.buildAppImage(
      app,
      { ...request, context: "", rootDirectory: "", recipe: "", secrets: {}, buildKey: found.key },
      work,
    );

  readonly findEqualImage: Pipeline["findEqualImage"] = async (_app, project, key) => {
    const tag = this.#stage.byKey.get(keyOf(project, key));
    return this.reuses && tag !== undefined ? this.#stage.images.get(tag) : undefined;
  };

  readonly findAppImage: Pipeline["findAppImage"] = async (_app, _project, tag) =>
    this.#stage.images.get(tag);

  readonly scanImage: NonNullable<Pipeline["scanImage"]> = async () => {
    await this.during.scan?.({ ...silent, signal: new AbortController().signal });
    return "nothing found";
  };

  readonly release: Pipeline["release"] = async (app, request, work) => {
    const { serving, candidates, started } = this.#stage;
    await this.during.release?.(work);
    const { id } = request.deployment;
    const environment = request.environment.id;
    candidates.add(id);
    const { argv, port, env, image } = request;
    started.set(id, { argv, port, env, image: image.tag });
    const within = (signal: AbortSignal): Work => ({ ...work, signal });
    const candidate: Candidate = {
      waitHealthy: async (signal) => {
        await this.during.health?.(within(signal));
        return this.status;
      },
      takeOver: async (signal) => {
        const before = serving.get(environment);
        await switchTo(app, environment, id);
        serving.set(environment, id);
        candidates.delete(id);
        try {
          await this.during.route?.(within(signal));
        } catch (error) {
          await switchTo(app, environment, before ?? null);
          if (before === undefined) serving.delete(environment);
          else serving.set(environment, before);
          candidates.add(id);
          throw error;
        }
      },
      discard: async () => void candidates.delete(id),
    };
    return candidate;
  };

  readonly proveServed: Pipeline["proveServed"] = async (_app, _environment, signal) =>
    this.during.proof?.({ ...silent, signal });
}

async function switchTo({ db }: App, environment: string, deployment: string | null): Promise<void> {
  await db
    .updateTable("environments")
    .set({ live_deployment_id: deployment })
    .where("id", "=", environment)
    .execute();
}

/** Waits until the signal aborts, and rejects with its reason. */
export function untilAborted({ signal }: Work): Promise<void> {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason as Error);
    signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true });
  });
}
