/**
 * Clones a sandbox in its current state. A running sandbox stops only while it is captured; a paused one stays paused.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import {
  capture,
  envOf,
  findModel,
  findSnapshot,
  newBytes,
  refuseUnlessRestorable,
  shareBytes,
} from "#machines/snapshots/clones.ts";
import { type Clones, makeClones } from "./clone.ts";
import { ownEnv } from "./environment.ts";
import { sandboxNotFound, sandboxTerminated, volumeAttached } from "../errors.ts";
import { waitForMove } from "./moves.ts";
import { explain, getSandbox } from "../sandboxes.ts";
import type { SandboxFork } from "../schema.ts";
import type { SandboxRow } from "../store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "config" | "clock" | "log">;

/** Creates all requested clones, or none. */
export async function forkSandbox(
  app: Needs,
  actor: Actor,
  id: string,
  input: SandboxFork,
): Promise<SandboxRow[]> {
  await getSandbox(app, actor, id);
  for (;;) {
    const source = await waitForMove(app, id);
    if (!source) throw sandboxNotFound();
    if (source.status === "terminated") throw sandboxTerminated(source.termination_reason);
    if (source.volume_id !== null) throw volumeAttached();
    const origin = await (source.status === "running" ? running(app, actor, id) : originOfPaused(app, id));
    // Without an origin, the sandbox was paused, resumed or deleted meanwhile, so the loop reads it again.
    if (!origin) continue;
    const workspace = actor.workspaces.find((one) => one.id === source.workspace_id);
    if (!workspace) throw sandboxNotFound();
    const { template, template_id, substituted, process_defaults, start_command_id } = source;
    const { size, cpu, memory_mb, network, region, allow_domains } = source;
    return makeClones(app, actor, {
      workspace,
      count: input.count,
      like: {
        template,
        template_id,
        substituted,
        process_defaults,
        // A start command that still runs also runs in the clones, under the same id.
        start_command_id,
        size,
        cpu,
        memory_mb,
        network,
        region,
        allow_domains,
        volume_id: null,
        on_timeout: input.on_timeout ?? source.on_timeout,
        auto_resume: input.auto_resume ?? source.auto_resume,
        timeout_seconds: input.timeout_seconds ?? source.timeout_seconds,
        metadata: input.metadata ?? source.metadata,
        forked_from: id,
      },
      hasPreviewToken: input.preview_auth ?? source.preview_token_sealed !== null,
      ...origin,
      env: { ...origin.env, ...input.env },
    });
  }
}

type Origin = Pick<Clones, "model" | "env" | "bytes" | "write">;

async function running(app: Needs, actor: Actor, id: string): Promise<Origin | undefined> {
  const model = await findModel(app, id);
  if (!model) return undefined;
  const bytes = newBytes();
  return {
    model,
    env: ownEnv(envOf(app, model)),
    bytes,
    write: async () => {
      try {
        await capture(app, model, bytes, { isDurable: false });
      } catch (error) {
        throw await explain(app, actor, id, error);
      }
    },
  };
}

async function originOfPaused(app: Needs, id: string): Promise<Origin | undefined> {
  const model = await findSnapshot(app.db, { ownerKind: "sandbox", ownerId: id });
  if (!model) return undefined;
  await refuseUnlessRestorable(app, model);
  const bytes = newBytes();
  if (!(await shareBytes(app, model, bytes))) return undefined;
  return { model, env: ownEnv(envOf(app, model)), bytes };
}
