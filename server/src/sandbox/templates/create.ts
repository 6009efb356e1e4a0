import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { planLimit } from "#accounts/errors.ts";
import { tierLimits } from "#accounts/plans.ts";
import { homeWorkspace, requireNotSuspended } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { queueBuild } from "#builds/builds.ts";
import { checkDockerfile } from "#builds/check-dockerfile.ts";
import { newId } from "#lib/ids.ts";
import { invalidField } from "../sandboxes/errors.ts";
import { templateLimitReached } from "./errors.ts";
import { type Base, resolveBase } from "./resolve.ts";
import { type Template, type TemplateCreate, toTemplate } from "./schema.ts";
import { holdTemplate, insertTemplate, lockAndCountTemplates, type TemplateRow } from "./store.ts";
import { target } from "./templates.ts";

/** Maximum of templates in a workspace. Templates share the layers of their base. */
const templatesMax = 100;
/** Maximum of own templates in a chain. Each image has a name for every file of the images below. */
const depthMax = 20;

/** Creates a template. The build is queued on return, and continues after an end of this server. */
export async function createTemplate(
  app: Pick<App, "db" | "machines" | "clock">,
  actor: Actor,
  input: TemplateCreate,
): Promise<Template> {
  const workspace = requireNotSuspended(homeWorkspace(actor));
  if (!tierLimits[workspace.sandboxTier].canBuildTemplates) {
    throw planLimit("custom_templates", false, "payg");
  }
  const source = sourceOf(input);
  const base = await baseOf(app, workspace.id, source);
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
      throw invalidField("base_template", `"${source.base_template}" was deleted.`);
    }
    const made = await insertTemplate(tx, {
      id,
      workspace_id: workspace.id,
      name: input.name,
      base_template: source.base_template,
      base_template_id: base.id,
      depth: base.depth,
      recipe: JSON.stringify(source.recipe),
      dockerfile: input.dockerfile ?? null,
      image: input.image ?? null,
      process_defaults: base.defaults && JSON.stringify(base.defaults),
      network: source.network,
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
      base: base.id ?? source.base_template,
      steps: source.recipe,
      network: source.network,
      dockerfile: source.dockerfile,
    });
    await recordActivity(tx, actor, "template.created", target(made), workspace.id);
    return made;
  });
  return toCreated(row);
}

interface Source {
  base_template: string;
  recipe: string[];
  network: "restricted" | "open";
  /** Undefined for a template from a base and a recipe. */
  dockerfile?: string;
}

function sourceOf({ base_template = "", recipe = [], dockerfile, image, network }: TemplateCreate): Source {
  const field = dockerfile === undefined ? "image" : "dockerfile";
  const text = dockerfile ?? (image === undefined ? undefined : `FROM ${image}`);
  if (text === undefined) return { base_template, recipe, network: network ?? "restricted" };
  const checked = checkDockerfile(text);
  if ("refused" in checked) throw invalidField(field, checked.refused);
  // The builder of Dockerfiles has internet access, as for apps. The allowlist applies to machines only.
  if (network === "restricted") {
    throw invalidField(
      "network",
      `a build of ${field} is open, as builds of apps are; send "open", or leave the field out.`,
    );
  }
  return { base_template: image ?? checked.base, recipe: [], network: "open", dockerfile: text };
}

async function baseOf(
  app: Parameters<typeof resolveBase>[0],
  workspaceId: string,
  { base_template, dockerfile }: Source,
): Promise<Base> {
  if (dockerfile !== undefined) return { id: null, depth: 1, defaults: null };
  return resolveBase(app, workspaceId, base_template);
}

/** Returns the response of a create, which contains the id that the start command has in every sandbox. */
export function toCreated(row: TemplateRow): Template {
  const { start_command_id } = row;
  return { ...toTemplate(row), ...(start_command_id === null ? {} : { start_command_id }) };
}
