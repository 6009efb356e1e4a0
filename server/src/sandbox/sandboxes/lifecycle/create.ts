import type { Actor, ReachableWorkspace } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { planLimit } from "#accounts/errors.ts";
import { nextTier } from "#accounts/plans.ts";
import type { App } from "#app.ts";
import type { Transaction } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { makeWorkspace } from "./process-defaults.ts";
import { startReserved } from "#machines/placement/start-reserved.ts";
import { place } from "#machines/placement/placement.ts";
import { withReclaim } from "#machines/placement/reclaim.ts";
import { byWhom, recordEvent } from "#sandbox/events/events.ts";
import { resolveTemplate } from "#sandbox/templates/resolve.ts";
import { holdTemplate } from "#sandbox/templates/templates.ts";
import { attachVolume, markMade } from "#sandbox/volumes/attach.ts";
import { knownRegion } from "#sandbox/volumes/volumes.ts";
import { createFromSnapshot } from "./create-from-snapshot.ts";
import { unknownTemplate } from "../errors.ts";
import { hostnameOf, sandboxEnv } from "./environment.ts";
import { defaultTimeoutSeconds, refuseByPlan } from "../limits/plan-limits.ts";
import { newPreviewToken, type SandboxCreate } from "../schema.ts";
import { runStartCommand } from "./start-command.ts";
import { maxConcurrent, shapeOf, type Size, sizes } from "../limits/sizes.ts";
import { insertSandbox, lockAndCountLive, type SandboxRow } from "../store.ts";
import { endSandbox } from "./terminate.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "config" | "clock" | "log">;

/** Maximum wait for a template that is still being built, before the caller has to retry. */
const templateWaitMs = 30_000;

/** Creates a sandbox. The machine runs on return, or nothing of the sandbox is left. */
export function createSandbox(app: Needs, actor: Actor, input: SandboxCreate): Promise<SandboxRow> {
  const { snapshot } = input;
  if (snapshot !== undefined) return createFromSnapshot(app, actor, { ...input, snapshot });
  return createKept(app, actor, input, async () => {});
}

/** Adds writes to the transaction that inserts the sandbox. A repeated transaction calls this function again. */
export type CreateHook = (tx: Transaction, sandboxId: string) => Promise<void>;

/**
 * Creates a sandbox together with the caller's own record of it, in one transaction. Accepts templates, but no
 * snapshots.
 */
export function createKept(
  app: Needs,
  actor: Actor,
  input: SandboxCreate,
  beside: CreateHook,
): Promise<SandboxRow> {
  const { template } = input;
  if (template === undefined) throw new Error("a create has a template or a snapshot");
  return createFromTemplate(app, actor, { ...input, template, size: input.size ?? "small" }, beside);
}

type FromTemplate = Omit<SandboxCreate, "template" | "size"> & { template: string; size: Size };

async function createFromTemplate(
  app: Needs,
  actor: Actor,
  input: FromTemplate,
  beside: CreateHook,
): Promise<SandboxRow> {
  const workspace = homeWorkspace(actor);
  const timeoutSeconds = input.timeout_seconds ?? defaultTimeoutSeconds;
  refuseByPlan(workspace, { ...input, timeout_seconds: timeoutSeconds });
  knownRegion(app, input.region);
  const { image, template, custom } = await resolveTemplate(
    app,
    workspace.id,
    input.template,
    templateWaitMs,
  );
  const now = app.clock.now();
  const id = newId("sbx_");

  const { row, reservation } = await withReclaim(app, () =>
    app.db.transaction().execute(async (tx) => {
      const live = await lockAndCountLive(tx, workspace.id);
      const allowed = maxConcurrent(app.config, workspace.sandboxTier);
      if (live >= allowed)
        throw planLimit("max_concurrent_sandboxes", allowed, nextTier(workspace.sandboxTier), workspace.id);
      // The template may have been deleted meanwhile. From here on its image stays, until the machine's row refers to
      // it.
      if (custom && !(await holdTemplate(tx, custom.id))) throw unknownTemplate(input.template, []);
      const volume = await volumeFor(app, tx, { actor, workspace, sandboxId: id, input });
      const row = await insertSandbox(tx, {
        id,
        workspace_id: workspace.id,
        template: input.template,
        template_id: custom?.id ?? null,
        substituted: image.substitute,
        process_defaults: custom?.process_defaults ?? null,
        start_command_id: custom?.start_command_id ?? null,
        size: input.size,
        cpu: sizes[input.size].cpu,
        memory_mb: sizes[input.size].memoryMb,
        network: input.network,
        region: volume?.region ?? knownRegion(app, input.region),
        volume_id: volume?.id ?? null,
        on_timeout: input.on_timeout,
        auto_resume: input.auto_resume,
        timeout_seconds: timeoutSeconds,
        expires_at: new Date(now.getTime() + timeoutSeconds * 1000),
        preview_token_sealed: input.preview_auth ? newPreviewToken(app, id) : null,
        allow_domains: input.network === "restricted" ? (input.allow_domains ?? null) : null,
        metadata: input.metadata,
        created_at: now,
      });
      await beside(tx, id);
      const reservation = await place(app, tx, {
        ownerKind: "sandbox",
        ownerId: id,
        shape: shapeOf(template, input.size, app.config.machineDiskGb),
        image,
        network: input.network,
        hostname: hostnameOf(id),
        env: sandboxEnv(id, input.network, input.env),
        ...(volume ? { volume } : {}),
      });
      const target = { kind: "sandbox", id, label: input.template };
      await recordActivity(tx, actor, "sandbox.created", target, workspace.id);
      await recordEvent(tx, {
        workspaceId: workspace.id,
        event: "sandbox.created",
        sandboxId: id,
        at: now,
        outcome: "ok",
        summary: `Created from ${input.template}.`,
        detail: {
          ...byWhom(actor),
          template: input.template,
          size: input.size,
          network: input.network,
          region: row.region,
          ...(volume ? { volume_id: volume.id } : {}),
        },
        actor,
      });
      return { row, reservation };
    }),
  );

  try {
    await startReserved(app, reservation);
    if (custom?.isOfImage) await makeWorkspace(app, reservation.row.id, row);
    const { volume } = reservation.request;
    if (volume?.isNew) await markMade(app, volume);
  } catch (error) {
    await endSandbox(app, { id, reason: "start_failed" });
    throw error;
  }
  const running = { ...row, machine_id: reservation.row.id, sandbox_tier: workspace.sandboxTier };
  return custom ? runStartCommand(app, running, custom) : running;
}

async function volumeFor(
  app: Needs,
  tx: Transaction,
  made: { actor: Actor; workspace: ReachableWorkspace; sandboxId: string; input: FromTemplate },
) {
  const { volume: reference, region } = made.input;
  return reference === undefined ? undefined : attachVolume(app, tx, { ...made, reference, region });
}

/** Returns the workspace of a create without `workspace`: the personal one, or the one that the token is bound to. */
function homeWorkspace(actor: Actor): ReachableWorkspace {
  const home = actor.workspaces.find((workspace) => workspace.kind === "personal") ?? actor.workspaces[0];
  if (!home) throw new Error("an actor reaches at least one workspace");
  return home;
}
