/**
 * Functions of a deployment that fetch code, make an image and run it. The server uses those in `steps-on-host.ts`,
 * and tests of the state machine use a fake.
 */
import type { Plan } from "#accounts/roles.ts";
import type { App } from "#app.ts";
import type { FoundImage } from "#builds/pulled-images.ts";
import type { RegistryCredential } from "#builds/registry/client.ts";
import type { ImageReference } from "#builds/registry/reference.ts";
import type { EnvironmentRow } from "#platform/environments/environments.ts";
import type { ProjectRow } from "#platform/projects/projects.ts";
import type { DeploymentRow } from "../store.ts";

/** Arguments of every step: its log, its progress and its abort signal. `log` waits while much output is unwritten. */
export interface Work {
  log: (text: string) => Promise<void>;
  /** Reports the fraction of the step, 0 to 1. */
  progress: (fraction: number, message: string) => void;
  /** When it aborts, the step undoes its effects and rejects. */
  signal: AbortSignal;
}

interface Commit {
  sha: string;
  message: string;
  author: string;
}

/** Image of an app, with the command and port that it declares. */
export interface BuiltImage {
  /** Id of the image in the driver. */
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
  /** The checkout's directory on this host. */
  context: string;
  /** Directory below `context` that the builder gets. */
  rootDirectory: string;
  /** Text of the Dockerfile. */
  recipe: string;
  /** Variables that build steps can mount. No layer contains them. */
  secrets: Record<string, string>;
  plan: Plan;
  /** Key of the build's inputs. Builds with the same key make the same image. */
  buildKey: Buffer;
}

/** Request to pull an image from a registry instead of a build. */
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

/** Started app that does not serve the environment yet. */
export interface Candidate {
  /** Resolves to the health check's status. Rejects with the last output if the app ends or responds too late. */
  waitHealthy(signal: AbortSignal, log?: Work["log"]): Promise<number>;
  /**
   * Switches the environment to this app in one transaction, and checks it through the public listener. The earlier
   * app is drained and stopped in the background.
   */
  takeOver(signal: AbortSignal): Promise<void>;
  /** Removes the candidate before it returns. Does nothing after `takeOver`. */
  discard(): Promise<void>;
}

export interface Pipeline {
  checkout(
    app: App,
    project: ProjectRow,
    what: { branch: string; sha: string | null; tag: string | null; into: string } & Work,
  ): Promise<Commit>;
  buildAppImage(app: App, request: BuildRequest, work: Work): Promise<BuiltImage>;
  /** Queries the registry for the image that the reference names. */
  findRegistryImage(app: App, request: PullRequest, work: Work): Promise<FoundImage>;
  /** Downloads the image to the directory, and removes the directory afterwards. */
  pullAppImage(
    app: App,
    request: PullRequest & { found: FoundImage; into: string },
    work: Work,
  ): Promise<BuiltImage>;
  /** Undefined if the image was deleted. */
  findAppImage(app: App, projectId: string, tag: string): Promise<BuiltImage | undefined>;
  /** Finds the newest kept image with this build key. */
  findEqualImage(app: App, projectId: string, buildKey: Buffer): Promise<BuiltImage | undefined>;
  /** Scans the image and returns one sentence about the result. Absent if no scanner is set up. */
  scanImage?(app: App, projectId: string, tag: string): Promise<string>;
  release(app: App, request: ReleaseRequest, work: Work): Promise<Candidate>;
  /** A deployment of the environment started or ended. */
  statusChanged?(app: App, environmentId: string): Promise<void>;
  /** Resolves when the environment's app responds through the public listener. */
  proveServed(app: App, environment: EnvironmentRow, signal: AbortSignal): Promise<void>;
}
