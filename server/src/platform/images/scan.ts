/**
 * Scans a project's image. The workspace is notified of critical and high findings that are new since the project's
 * last scan. So another deployment of the same packages sends no notification.
 */
import { notify } from "#accounts/notifications/notifications.ts";
import type { App } from "#app.ts";
import { type ImageScan, scanImage, type StoredScan } from "#builds/scan.ts";
import type { Db } from "#schema.ts";
import { target } from "../projects/projects.ts";
import { findOwner } from "./store.ts";

/** Scans the image. Resolves to undefined if the image does not exist. */
export function scanAndNotify(
  app: Pick<App, "db" | "machines" | "clock">,
  projectId: string,
  tag: string,
): Promise<ImageScan | undefined> {
  return scanImage(app, projectId, tag, (tx, scan, earlier) =>
    notifyOfFindings(tx, projectId, scan, earlier),
  );
}

async function notifyOfFindings(
  tx: Db,
  projectId: string,
  scan: ImageScan,
  earlier: readonly StoredScan[],
): Promise<void> {
  const known = knownOf(earlier);
  const found = severe(scan);
  const fresh = found.filter((one) => !known.has(one));
  if (fresh.length === 0) return;
  const project = await findOwner(tx, projectId);
  if (!project) return;
  const counts = Object.entries(scan.summary).map(([severity, count]) => `${count} ${severity}`);
  const isFirst = fresh.length === found.length;
  await notify(tx, {
    workspaceId: project.workspace_id,
    kind: "image_findings",
    title: `Image ${scan.tag} of ${project.name} has ${fresh.length} ${isFirst ? "" : "new "}critical or high ${fresh.length === 1 ? "finding" : "findings"}`,
    body: `The scan found ${counts.join(", ")}. Scan the image again for the list, update the packages and deploy.`,
    target: target(project),
  });
}

/**
 * Returns the known findings: those of the last scan with all sources, and of the later scans. Otherwise, after a scan
 * in which a source did not respond, the next scan would notify of all its findings again.
 */
function knownOf(earlier: readonly StoredScan[]): Set<string> {
  const last = earlier.findIndex(({ status }) => status === "complete");
  return new Set(earlier.slice(0, last === -1 ? earlier.length : last + 1).flatMap(severe));
}

function severe({ findings }: Pick<ImageScan, "findings">): string[] {
  return findings
    .filter(({ severity }) => severity === "critical" || severity === "high")
    .map(({ id, package: name }) => `${id} ${name}`);
}
