/** The scan of a project's image. The first one with critical or high findings notifies the workspace. */
import { notify } from "#accounts/notifications/notifications.ts";
import type { App } from "#app.ts";
import { type ImageScan, scanImage } from "#builds/scan.ts";
import type { Db } from "#db/db.ts";
import { target } from "../projects/projects.ts";
import { findOwner } from "./store.ts";

/** Undefined if the image does not exist. */
export function scanAndNotify(
  app: Pick<App, "db" | "machines" | "clock">,
  projectId: string,
  tag: string,
): Promise<ImageScan | undefined> {
  return scanImage(app, projectId, tag, (tx, scan, before) => notifyOfFindings(tx, projectId, scan, before));
}

/** Runs in the transaction that stores the scan, so each image notifies once. */
async function notifyOfFindings(
  tx: Db,
  projectId: string,
  { tag, summary }: ImageScan,
  before: ImageScan | null,
): Promise<void> {
  const severe = ({ critical, high }: ImageScan["summary"]) => critical + high;
  const found = severe(summary);
  if (found === 0 || (before && severe(before.summary) > 0)) return;
  const project = await findOwner(tx, projectId);
  if (!project) return;
  const counts = Object.entries(summary).map(([severity, count]) => `${count} ${severity}`);
  await notify(tx, {
    workspaceId: project.workspace_id,
    kind: "image_findings",
    title: `Image ${tag} of ${project.name} has ${found} critical or high ${found === 1 ? "finding" : "findings"}`,
    body: `The scan found ${counts.join(", ")}. Scan the image again for the list, update the packages and deploy.`,
    target: target(project),
  });
}
