/**
 * Scans an app's image for known vulnerabilities. The image's row holds the last scan. A scan does not decide whether
 * the image may run.
 */
import type { Finding, Severity } from "@kontor/runtime/oci/scan.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { findAppImageRow } from "./app-images.ts";
import { listOtherScans, saveScan } from "./store.ts";

export interface ImageScan {
  tag: string;
  scannedAt: Date;
  scanner: string;
  /** Date of the oldest advisory data; null if no source responded. */
  sourceDate: Date | null;
  /** `partial`: a relevant source did not respond. `unavailable`: no source responded, or none is relevant. */
  status: "complete" | "partial" | "unavailable";
  summary: Record<Severity, number>;
  findings: Finding[];
  sources: { source: string; status: "answered" | "unavailable" | "not_applicable"; detail: string | null }[];
}

type Needs = Pick<App, "db" | "machines" | "clock">;

/** A scan as stored in the image's row. */
export type StoredScan = Omit<ImageScan, "scannedAt" | "sourceDate"> & { scannedAt: string };

/**
 * Handles a scan in the transaction that stores the scan. The argument `earlier` contains the scans of the project's
 * images, newest first, including the replaced scan.
 */
export type OnScanned = (tx: Db, scan: ImageScan, earlier: readonly StoredScan[]) => Promise<void>;

/** Limit of earlier scans, above the number of images that retention keeps. */
const earlierMax = 50;

/** Running scans, by project and tag. */
const underWay = new Map<string, Promise<ImageScan | undefined>>();

/**
 * Scans an image. Resolves to undefined if the image does not exist. A scan takes seconds, and succeeds even if a
 * source is unavailable. Concurrent calls for one image share a scan.
 */
export function scanImage(
  app: Needs,
  projectId: string,
  tag: string,
  onScanned: OnScanned,
): Promise<ImageScan | undefined> {
  const key = `${projectId} ${tag}`;
  const running = underWay.get(key);
  if (running) return running;
  const scan = scanOnce(app, projectId, tag, onScanned).finally(() => underWay.delete(key));
  underWay.set(key, scan);
  return scan;
}

async function scanOnce(
  app: Needs,
  projectId: string,
  tag: string,
  onScanned: OnScanned,
): Promise<ImageScan | undefined> {
  const row = await findAppImageRow(app.db, projectId, tag);
  if (!row) return undefined;
  const { scanner, sources } = await app.machines.host.scanAppImage(row.id, row.run.cwd);
  const answered = sources.filter(({ findings }) => findings !== null);
  const unavailable = sources.filter((source) => source.unavailable !== null);
  const findings = answered.flatMap((source) => source.findings ?? []);
  const summary = { critical: 0, high: 0, medium: 0, low: 0, unknown: 0 };
  for (const { severity } of findings) summary[severity] += 1;
  const dates = answered.flatMap(({ dataOf }) => dataOf?.getTime() ?? []);
  const scan: ImageScan = {
    tag,
    scannedAt: app.clock.now(),
    scanner,
    sourceDate: dates.length > 0 ? new Date(Math.min(...dates)) : null,
    status: answered.length === 0 ? "unavailable" : unavailable.length > 0 ? "partial" : "complete",
    summary,
    findings,
    sources: sources.map((source) => ({
      source: source.source,
      status:
        source.findings !== null
          ? "answered"
          : source.unavailable !== null
            ? "unavailable"
            : "not_applicable",
      detail: source.unavailable,
    })),
  };
  await transaction(app.db, async (tx) => {
    const before = await saveScan(tx, row.id, JSON.stringify(scan));
    const others = await listOtherScans(tx, { projectId, exceptId: row.id, limit: earlierMax });
    const earlier = [...(before === null ? [] : [before]), ...others] as StoredScan[];
    await onScanned(
      tx,
      scan,
      earlier.toSorted((a, b) => b.scannedAt.localeCompare(a.scannedAt)),
    );
  });
  return scan;
}

/** Returns the findings and the unavailable sources as one line of a log. */
export function describeScan({
  status,
  findings,
  sources,
}: Pick<ImageScan, "status" | "findings" | "sources">): string {
  const silent = sources
    .filter((source) => source.status === "unavailable")
    .map(({ source, detail }) => `${source} did not respond${detail ? ` (${detail})` : ""}`);
  const found =
    status === "unavailable"
      ? "No source has a result"
      : `${findings.length} known ${findings.length === 1 ? "vulnerability" : "vulnerabilities"}`;
  return `${[found, ...silent].join("; ")}.`;
}
