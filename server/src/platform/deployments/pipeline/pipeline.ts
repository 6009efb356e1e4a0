/**
 * What a deployment is made of, seen from here: where the code comes from, what makes an image of it, and what runs
 * that. Main puts the real ones in; a test of the state machine plays them.
 */
import type { Plan } from "#accounts/roles.ts";
import type { App } from "#app.ts";
import type { FoundImage } from "#builds/pulled-images.ts";
import type { RegistryCredential } from "#builds/registry/client.ts";
import type { ImageReference } from "#builds/registry/reference.ts";
import type { EnvironmentRow } from "#platform/environments/environments.ts";
import type { ProjectRow } from "#platform/projects/projects.ts";
import type { DeploymentRow } from "../store.ts";

/** What every part of it gets: where its lines go (whoever has many of them waits), and what ends it. */
export interface Work {
  log: (text: string) => Promise<void>;
  /** Reports the fraction of the step, 0 to 1. */
  progress: (fraction: number, message: string) => void;
  /** Aborted: what was begun is undone, and the call fails. */
  signal: AbortSignal;
}

export interface Commit {
  sha: string;
  message: string;
  author: string;
}

/** An image of an app, and how it wants to be run. */
export interface BuiltImage {
  /** The driver's. */
  imageId: string;
  /** Within its project. */
  tag: string;
  digest: string;
  sizeBytes: number;
  run: {
    argv: string[];
    port: number | null;
    healthCheckPath: string | null;
    user: string | null;
    cwd: string;
    env: Record<string, string>;
  };
}

export interface BuildRequest {
  workspaceId: string;
  projectId: string;
  deploymentId: string;
  /** The checkout's directory on this host. */
  context: string;
  /** Below it, what is handed to the builder. */
  rootDirectory: string;
  /** A Dockerfile's text. */
  recipe: string;
  /** Variables that steps may see by mount, and that are in no layer. */
  secrets: Record<string, string>;
  plan: Plan;
  /** Key of the build's inputs. Builds with the same key make the same image. */
  buildKey: Buffer;
}

/** An image of a registry, in place of a build. */
export interface PullRequest {
  workspaceId: string;
  projectId: string;
  deploymentId: string;
  reference: ImageReference;
  credential: RegistryCredential | null;
  plan: Plan;
}

export interface ReleaseRequest {
  environment: EnvironmentRow;
  deployment: DeploymentRow;
  image: BuiltImage;
  argv: string[];
  port: number;
  healthCheckPath: string;
  env: Record<string, string>;
  isolation: ProjectRow["isolation"];
  size: string;
}

/** An app that was started beside the one that serves. */
export interface Candidate {
  /** Resolves to the health check's status. Rejects with the last output if the app ends or responds too late. */
  waitHealthy(signal: AbortSignal, log?: Work["log"]): Promise<number>;
  /**
   * In one transaction the environment's `live_deployment_id` and what serves it; then proof by a request through the
   * public listener. The earlier one is drained and ended in the background.
   */
  takeOver(signal: AbortSignal): Promise<void>;
  /** It is gone when this returns. Does nothing to one that took over. */
  discard(): Promise<void>;
}

export interface Pipeline {
  checkout(
    app: App,
    project: ProjectRow,
    what: { branch: string; sha: string | null; tag: string | null; into: string } & Work,
  ): Promise<Commit>;
  buildAppImage(app: App, request: BuildRequest, work: Work): Promise<BuiltImage>;
  /** Asks the registry which image the reference names. */
  findRegistryImage(app: App, request: PullRequest, work: Work): Promise<FoundImage>;
  /** Downloads it into the directory, which is removed afterwards. */
  pullAppImage(
    app: App,
    request: PullRequest & { found: FoundImage; into: string },
    work: Work,
  ): Promise<BuiltImage>;
  /** Undefined once it is not kept any more. */
  findAppImage(app: App, projectId: string, tag: string): Promise<BuiltImage | undefined>;
  /** Finds the newest kept image with this build key. */
  findEqualImage(app: App, projectId: string, buildKey: Buffer): Promise<BuiltImage | undefined>;
  /** A sentence of what it found. Absent where nothing scans. */
  scanImage?(app: App, projectId: string, tag: string): Promise<string>;
  release(app: App, request: ReleaseRequest, work: Work): Promise<Candidate>;
  /** A deployment of the environment started or ended. */
  statusChanged?(app: App, environmentId: string): Promise<void>;
  /** Settles once what an environment serves answers through the public listener. */
  proveServed(app: App, environment: EnvironmentRow, signal: AbortSignal): Promise<void>;
}
