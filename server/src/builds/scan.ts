/**
 * Scans an app's image for known vulnerabilities. The last scan is stored in the image's row. A scan never decides
 * whether the image may run.
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

/** A scan in the image's row. */
export type StoredScan = Omit<ImageScan, "scannedAt" | "sourceDate"> & { scannedAt: string };

/**
 * Runs in the transaction that stores a scan. `earlier` are the scans of the project's images, newest first, including
 * the scan that is replaced.
 */
export type OnScanned = (tx: Db, scan: ImageScan, earlier: readonly StoredScan[]) => Promise<void>;

/** Above the number of images that are kept. */
const earlierMax = 50;

/** Running scans, by project and tag. */
const underWay = new Map<string, Promise<ImageScan | undefined>>();

/**
 * Undefined if the image does not exist. Takes seconds, and succeeds even if a source is unavailable. A concurrent call
 * for the same image shares the running scan.
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

/** A line for a log: the findings, and the unavailable sources. */
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
