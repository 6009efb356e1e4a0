/** Resolves the `template` of a create. */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import { progressOf } from "#builds/builds.ts";
import type { ProcessDefaults } from "#builds/tables.ts";
import { templatePreparing } from "#machines/errors.ts";
import type { HostImage } from "#machines/host/host.ts";
import { unknownTemplate } from "../sandboxes/errors.ts";
import { templateNotReady, unknownBase } from "./errors.ts";
import { findNewest, findTagged, findTemplate, listNames, type TemplateRow } from "./store.ts";

type Needs = Pick<App, "db" | "machines">;

const lookEveryMs = 250;
/** Maximum of a workspace's own templates that an error names. */
const knownMax = 20;

export interface ResolvedTemplate {
  image: HostImage;
  /** Name of the image in a pool: the built-in's name, or the template's id. */
  template: string;
  /** Null for a built-in template. */
  custom:
    | (Pick<TemplateRow, "id" | "start_command" | "start_command_id" | "process_defaults"> & {
        /**
         * True for a template from a Dockerfile or an image, which may lack the directories of a built-in one.
         */
        isOfImage: boolean;
      })
    | null;
}

/**
 * Resolves a built-in name, an id, a name (with the tag `default`) or `name:tag`, of this workspace. Waits up to
 * `waitMs` for a template that is still being built.
 */
export async function resolveTemplate(
  app: Needs,
  workspaceId: string,
  template: string,
  waitMs: number,
): Promise<ResolvedTemplate> {
  const { images } = app.machines;
  if (images.has(template)) {
    return { image: await images.ready(template, waitMs), template, custom: null };
  }
  const row = await whenBuilt(app, workspaceId, template, waitMs);
  const { id, start_command, start_command_id, size_bytes, contents, substituted, substitute } = row;
  const image = { id, sizeBytes: size_bytes ?? 0, contents, substituted, substitute };
  const { process_defaults } = row;
  const isOfImage = row.dockerfile !== null || row.image !== null;
  return {
    image,
    template: id,
    custom: { id, start_command, start_command_id, process_defaults, isOfImage },
  };
}

/**
 * An image to build on: a built-in template, or a ready one of this workspace, with the names of a sandbox's create.
 */
export interface Base {
  /** Null for a built-in template. */
  id: string | null;
  /** Number of own templates in the chain of a template on this base, including that template. */
  depth: number;
  /** WORKDIR and USER, if the base comes from a Dockerfile or an image. */
  defaults: ProcessDefaults | null;
}

export async function resolveBase(app: Needs, workspaceId: string, base: string): Promise<Base> {
  if (app.machines.images.has(base)) return { id: null, depth: 1, defaults: null };
  const row = await find(app, workspaceId, base);
  if (!row) throw unknownBase(base, await knownTemplates(app, workspaceId));
  if (row.status !== "ready") throw templateNotReady(row.status);
  return { id: row.id, depth: row.depth + 1, defaults: row.process_defaults };
}

async function knownTemplates(app: Needs, workspaceId: string): Promise<string[]> {
  const builtIn = app.machines.images.status().map(({ name }) => name);
  return [...builtIn, ...(await listNames(app.db, workspaceId, knownMax))];
}

async function whenBuilt(
  app: Needs,
  workspaceId: string,
  template: string,
  waitMs: number,
): Promise<TemplateRow> {
  for (const until = Date.now() + waitMs; ; await sleep(lookEveryMs)) {
    const row = await find(app, workspaceId, template);
    if (!row) throw unknownTemplate(template, await knownTemplates(app, workspaceId));
    if (row.status === "ready") return row;
    if (row.status === "failed") throw templateNotReady(row.status);
    if (Date.now() > until) throw templatePreparing(template, await progressOf(app.db, row.id));
  }
}

async function find(app: Needs, workspaceId: string, template: string): Promise<TemplateRow | undefined> {
  if (template.startsWith("tmpl_")) return findTemplate(app.db, template, [workspaceId]);
  const [name = "", tag, ...rest] = template.split(":");
  if (rest.length > 0) return undefined;
  const tagged = await findTagged(app.db, workspaceId, name, tag ?? "default");
  if (tagged || tag !== undefined) return tagged;
  // The first build of a name will get the default tag, so the call waits for a running build.
  const newest = await findNewest(app.db, workspaceId, name);
  return newest?.status === "ready" ? undefined : newest;
}
