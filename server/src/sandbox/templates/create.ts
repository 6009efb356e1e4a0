import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { planLimit } from "#accounts/errors.ts";
import { tierLimits } from "#accounts/plans.ts";
import { homeWorkspace, requireNotSuspended } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { queueBuild } from "#builds/builds.ts";
import { newId } from "#lib/ids.ts";
import { invalidField } from "../sandboxes/errors.ts";
import { templateLimitReached } from "./errors.ts";
import { resolveBase } from "./resolve.ts";
import { type Template, type TemplateCreate, toTemplate } from "./schema.ts";
import { holdTemplate, insertTemplate, lockAndCountTemplates, type TemplateRow } from "./store.ts";
import { target } from "./templates.ts";

/** In one workspace; what they share with one another and their base takes no room. */
const templatesMax = 100;
/** Maximum of own templates in a chain. Each image has a name for every file of the images below. */
const depthMax = 20;

/** The template is being built when this returns, and its build survives this server. */
export async function createTemplate(
  app: Pick<App, "db" | "machines" | "clock">,
  actor: Actor,
  input: TemplateCreate,
): Promise<Template> {
  const workspace = requireNotSuspended(homeWorkspace(actor));
  if (!tierLimits[workspace.sandboxTier].canBuildTemplates) {
    throw planLimit("custom_templates", false, "payg");
  }
  const base = await resolveBase(app, workspace.id, input.base_template);
  if (base.depth > depthMax) {
    throw invalidField(
      "base_template",
      `already builds on ${depthMax} templates; use one of its bases, and copy the steps into the recipe.`,
    );
  }
  const id = newId("tmpl_");
  const row = await app.db.transaction().execute(async (tx) => {
    if ((await lockAndCountTemplates(tx, workspace.id)) >= templatesMax) {
      throw templateLimitReached(templatesMax);
    }
    // A later deletion of the base finds this build, and keeps the image that it needs.
    if (base.id !== null && !(await holdTemplate(tx, base.id))) {
      throw invalidField("base_template", `"${input.base_template}" was deleted.`);
    }
    const made = await insertTemplate(tx, {
      id,
      workspace_id: workspace.id,
      name: input.name,
      base_template: input.base_template,
      base_template_id: base.id,
      depth: base.depth,
      recipe: JSON.stringify(input.recipe),
      network: input.network,
      description: input.description ?? null,
      wanted_tags: [...new Set(input.tags)],
      start_command: input.start_command ?? null,
      start_command_id: input.start_command === undefined ? null : newId("cmd_"),
      created_at: app.clock.now(),
    });
    await queueBuild(tx, app, {
      id,
      workspaceId: workspace.id,
      ownerKind: "template",
      base: base.id ?? input.base_template,
      steps: input.recipe,
      network: input.network,
    });
    await recordActivity(tx, actor, "template.created", target(made), workspace.id);
    return made;
  });
  return toCreated(row);
}

/** Who makes a template is told the id its start command has in every sandbox. */
export function toCreated(row: TemplateRow): Template {
  const { start_command_id } = row;
  return { ...toTemplate(row), ...(start_command_id === null ? {} : { start_command_id }) };
}
