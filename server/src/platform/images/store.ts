/** SQL of the deployments' use of images; `builds` owns the image rows. */
import { sql } from "kysely";
import type { Db } from "#schema.ts";

export interface ImageUse {
  tag: string | null;
  deploymentId: string;
  environmentId: string;
  isLive: boolean;
  isUnderWay: boolean;
}

/** Lists the project's deployments that use an image or may still build one, newest first. */
export async function usesOfImages(db: Db, projectId: string): Promise<ImageUse[]> {
  const rows = await db
    .selectFrom("deployments")
    .innerJoin("environments", "environments.id", "deployments.environment_id")
    .select([
      "deployments.id",
      "deployments.environment_id",
      "deployments.image_tag",
      "deployments.status",
      sql<boolean>`environments.live_deployment_id is not distinct from deployments.id`.as("is_live"),
    ])
    .where("deployments.project_id", "=", projectId)
    .where("deployments.status", "in", ["queued", "building", "deploying", "live", "superseded"])
    .orderBy("deployments.number", "desc")
    .execute();
  return rows.map(({ id, environment_id, image_tag, status, is_live }) => ({
    tag: image_tag,
    deploymentId: id,
    environmentId: environment_id,
    isLive: is_live || status === "live",
    isUnderWay: status === "queued" || status === "building" || status === "deploying",
  }));
}

/** Returns the owner of a project's images; undefined for a deleted project. */
export function findOwner(
  db: Db,
  projectId: string,
): Promise<{ id: string; name: string; workspace_id: string } | undefined> {
  return db
    .selectFrom("projects")
    .select(["id", "name", "workspace_id"])
    .where("id", "=", projectId)
    .where("deleted_at", "is", null)
    .executeTakeFirst();
}

/** Locks the project's images until the transaction ends, so that changes of them run one after the other. */
export async function lockImages(tx: Db, projectId: string): Promise<void> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${projectId}, 13))`.execute(tx);
}

/** Lists the projects with images, and the plans of their workspaces. */
export async function projectsWithImages(
  db: Db,
): Promise<{ id: string; plan: "starter" | "pro" | "team" }[]> {
  return db
    .selectFrom("projects")
    .innerJoin("workspaces", "workspaces.id", "projects.workspace_id")
    .select(["projects.id", "workspaces.plan"])
    .where((eb) =>
      eb.exists(
        eb
          .selectFrom("app_images")
          .select("app_images.id")
          .whereRef("app_images.project_id", "=", "projects.id")
          .where("app_images.pruned_at", "is", null),
      ),
    )
    .orderBy("projects.id")
    .execute();
}
