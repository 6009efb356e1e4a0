/** Checks a config's `vm` at publication, and the plan's limits at each run. */
import type { ReachableWorkspace } from "#accounts/actor.ts";
import { planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { DomainError } from "#lib/errors.ts";
import { templatePreparing } from "#machines/errors.ts";
import { refuseByPlan } from "#sandbox/sandboxes/limits/plan-limits.ts";
import { resolveTemplate } from "#sandbox/templates/resolve.ts";
import { isVolume } from "#sandbox/volumes/volumes.ts";
import type { AgentConfig } from "../agents/config.ts";
import { invalidField } from "../errors.ts";
import { sandboxOf, type Vm } from "./config.ts";
import { hasInterpreter } from "./tools/interpreter.ts";

type Needs = Pick<App, "machines">;

export async function requireMachine(
  { machines }: Needs,
  db: Db,
  { id: workspaceId, sandboxTier }: ReachableWorkspace,
  { vm }: AgentConfig,
): Promise<void> {
  if (!vm?.enabled) return;
  const parsed = sandboxOf(vm, sandboxTier, {});
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw invalidField(
      ["config", "vm", ...(issue?.path ?? []).map(toPart)],
      issue?.message ?? "is not valid",
    );
  }
  await requireTemplate({ db, machines }, workspaceId, vm);
  if (vm.volume !== null && !(await isVolume(db, workspaceId, vm.volume)))
    throw invalidField(["config", "vm", "volume"], "is not an existing volume; create the volume first");
  if (
    vm.tools.every((tool) => tool === "run_code") &&
    vm.tools.length > 0 &&
    !hasInterpreter({ machines }, vm)
  )
    throw invalidField(
      ["config", "vm", "tools"],
      `must not contain run_code, because ${vm.template} has no code interpreter; choose the ` +
        "template code-interpreter, or use exec",
    );
}

/** Throws unless the template exists. A template whose build is not finished is accepted. */
async function requireTemplate(
  app: Pick<App, "db" | "machines">,
  workspaceId: string,
  vm: Vm,
): Promise<void> {
  try {
    await resolveTemplate(app, workspaceId, vm.template, 0);
  } catch (error) {
    if (!(error instanceof DomainError)) throw error;
    if (error.code === templatePreparing.code) return;
    throw invalidField(["config", "vm", "template"], error.detail.replace(/^template: /, ""));
  }
}

/** Throws `plan_limit` if the plan does not allow the config's machine. */
export function requireMachinePlan(workspace: ReachableWorkspace, { vm }: AgentConfig): void {
  if (!vm?.enabled) return;
  if (vm.network === "open" && workspace.sandboxTier === "free")
    throw planLimit("vm_network", ["off", "restricted"], "payg");
  refuseByPlan(workspace, {
    size: vm.size,
    network: vm.network,
    allow_domains: vm.allow_domains.length > 0 ? vm.allow_domains : null,
    timeout_seconds: 0,
  });
}

const toPart = (part: PropertyKey): string | number => (typeof part === "symbol" ? String(part) : part);
