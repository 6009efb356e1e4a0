/** Looking an app's image through for known faults; the last look stays in its row. It never says whether it may run. */
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
  /** How old the oldest of what was asked is; null where nothing answered. */
  sourceDate: Date | null;
  /** `partial`: a source that has to do with the image did not answer. `unavailable`: none did, or none has. */
  status: "complete" | "partial" | "unavailable";
  summary: Record<Severity, number>;
  findings: Finding[];
  sources: { source: string; status: "answered" | "unavailable" | "not_applicable"; detail: string | null }[];
}

type Needs = Pick<App, "db" | "machines" | "clock">;

/** A scan in the image's row. */
export type StoredScan = Omit<ImageScan, "scannedAt" | "sourceDate"> & { scannedAt: string };

/**
 * Called in the transaction that stores a scan, with earlier scans of the project's images, the newest first. The scan
 * that it replaces is one of them.
 */
export type OnScanned = (tx: Db, scan: ImageScan, earlier: readonly StoredScan[]) => Promise<void>;

/** More scans than images that are kept. */
const earlierMax = 50;

/** Image by project and tag. */
const underWay = new Map<string, Promise<ImageScan | undefined>>();

/**
 * Undefined if the image does not exist. Takes seconds, and does not fail for a source that is unavailable. A second
 * caller gets the result of the scan under way.
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

/** For a log: what was found, and who could not be asked. */
export function describeScan({
  status,
  findings,
  sources,
}: Pick<ImageScan, "status" | "findings" | "sources">): string {
  const silent = sources
    .filter((source) => source.status === "unavailable")
    .map(({ source, detail }) => `${source} did not answer${detail ? ` (${detail})` : ""}`);
  const found =
    status === "unavailable"
      ? "No source could say anything of it"
      : `${findings.length} known ${findings.length === 1 ? "fault" : "faults"}`;
  return `${[found, ...silent].join("; ")}.`;
}
