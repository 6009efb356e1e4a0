/**
 * Functions of a deployment that fetch code, make an image and run the app. The server uses those in
 * `steps-on-host.ts`; tests of the state machine use fakes.
 */
import type { Plan } from "#accounts/roles.ts";
import type { App } from "#app.ts";
import type { FoundImage } from "#builds/pulled-images.ts";
import type { RegistryCredential } from "#builds/registry/client.ts";
import type { ImageReference } from "#builds/registry/reference.ts";
import type { EnvironmentRow } from "#platform/environments/environments.ts";
import type { ProjectRow } from "#platform/projects/projects.ts";
import type { DeploymentRow } from "../store.ts";

/** Arguments of every step: log, progress and abort signal. `log` waits while much output is not stored yet. */
export interface Work {
  log: (text: string) => Promise<void>;
  /** Reports the progress of the step as a fraction from 0 to 1. */
  progress: (fraction: number, message: string) => void;
  /** Signal of an abort. The step then undoes its effects and rejects. */
  signal: AbortSignal;
}

interface Commit {
  sha: string;
  message: string;
  author: string;
}

/** Image of an app, with the command and port that it declares. */
export interface BuiltImage {
  /** Id of the image on the host. */
  imageId: string;
  /** Tag of the image, unique in its project. */
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

interface BuildRequest {
  workspaceId: string;
  projectId: string;
  deploymentId: string;
  /** Directory of the checkout on this host. */
  context: string;
  /** Directory below `context` that the builder gets. */
  rootDirectory: string;
  /** Text of the Dockerfile. */
  recipe: string;
  /** Variables that build steps can mount. No layer of the image contains these variables. */
  secrets: Record<string, string>;
  plan: Plan;
  /** Hash of the build's inputs. Builds with equal keys make equal images. */
  buildKey: Buffer;
}

/** Request to pull an image from a registry in place of a build. */
export interface PullRequest {
  workspaceId: string;
  projectId: string;
  deploymentId: string;
  reference: ImageReference;
  credential: RegistryCredential | null;
  plan: Plan;
}

interface ReleaseRequest {
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

/** A started app that does not serve its environment yet. */
export interface Candidate {
  /** Resolves to the status of the health check. Rejects with the last output if the app ends or responds too late. */
  waitHealthy(signal: AbortSignal, log?: Work["log"]): Promise<number>;
  /**
   * Switches the environment to this app in one transaction, and checks the app through the public listener. The
   * earlier app is drained and stopped in the background.
   */
  takeOver(signal: AbortSignal): Promise<void>;
  /** Resolves when the candidate is removed. Does nothing after `takeOver`. */
  discard(): Promise<void>;
}

export interface Pipeline {
  checkout(
    app: App,
    project: ProjectRow,
    what: { branch: string; sha: string | null; tag: string | null; into: string } & Work,
  ): Promise<Commit>;
  buildAppImage(app: App, request: BuildRequest, work: Work): Promise<BuiltImage>;
  /** Returns the image that the reference names at its registry. */
  findRegistryImage(app: App, request: PullRequest, work: Work): Promise<FoundImage>;
  /** Downloads the image into the directory, imports it, and removes the directory. */
  pullAppImage(
    app: App,
    request: PullRequest & { found: FoundImage; into: string },
    work: Work,
  ): Promise<BuiltImage>;
  /** Returns the image with this tag; undefined if the image was deleted. */
  findAppImage(app: App, projectId: string, tag: string): Promise<BuiltImage | undefined>;
  /** Returns the newest kept image with this build key; undefined if there is none. */
  findEqualImage(app: App, projectId: string, buildKey: Buffer): Promise<BuiltImage | undefined>;
  /** Scans the image and returns a sentence about the result. Absent if no scanner is configured. */
  scanImage?(app: App, projectId: string, tag: string): Promise<string>;
  release(app: App, request: ReleaseRequest, work: Work): Promise<Candidate>;
  /** Called when a deployment of the environment started or ended. */
  statusChanged?(app: App, environmentId: string): Promise<void>;
  /** Resolves when the environment's app responds through the public listener. */
  proveServed(app: App, environment: EnvironmentRow, signal: AbortSignal): Promise<void>;
}
