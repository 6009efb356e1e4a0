/** The wire of images. */
import { z } from "zod";
import type { listAppImages } from "#builds/app-images.ts";
import type { ImageScan } from "#builds/scan.ts";

const timestamp = z.iso.datetime();

export const ImageParams = z.strictObject({
  project_id: z.guid(),
  tag: z.string().max(128),
});

export const RegistryImage = z
  .object({
    tag: z.string(),
    digest: z.string().describe("Of its manifest."),
    size_bytes: z.int().describe("Of all its layers, those that others share with it included."),
    created_at: timestamp,
    deployment_id: z.guid().nullable().describe("What it was built for."),
    live: z.boolean(),
    pinned: z.boolean().describe("It is live, being deployed, or one an environment can roll back to."),
  })
  .meta({ id: "RegistryImage" });
export type RegistryImage = z.output<typeof RegistryImage>;

/** The only way from a row to JSON. */
export interface ImageView {
  row: Awaited<ReturnType<typeof listAppImages>>[number];
  tag: string;
  isLive: boolean;
  isPinned: boolean;
}

export function toImage({ row, tag, isLive, isPinned }: ImageView): RegistryImage {
  return {
    tag,
    digest: row.digest,
    size_bytes: row.size_bytes,
    created_at: row.created_at.toISOString(),
    deployment_id: row.deployment_id,
    live: isLive,
    pinned: isPinned,
  };
}

const severity = z.enum(["critical", "high", "medium", "low", "unknown"]);

export const ScanReport = z
  .object({
    tag: z.string(),
    scanned_at: timestamp,
    scanner: z.string(),
    source_date: timestamp.nullable().describe("How old the oldest of what was asked is."),
    status: z
      .enum(["complete", "partial", "unavailable"])
      .describe(
        "`partial`: a source did not answer. `unavailable`: none did; that is not to have found nothing.",
      ),
    summary: z.object({
      critical: z.int(),
      high: z.int(),
      medium: z.int(),
      low: z.int(),
      unknown: z.int().describe("The source does not say."),
    }),
    findings: z.array(
      z.object({
        id: z.string(),
        package: z.string(),
        installed: z.string(),
        fixed_in: z.string().nullable(),
        severity,
        title: z.string(),
        source: z.string(),
      }),
    ),
    sources: z
      .array(
        z.object({
          source: z.string(),
          status: z.enum(["answered", "unavailable", "not_applicable"]),
          detail: z.string().nullable(),
        }),
      )
      .describe("What was asked, and why what did not answer did not."),
  })
  .meta({ id: "ScanReport" });
export type ScanReport = z.output<typeof ScanReport>;

export function toScan(scan: ImageScan): ScanReport {
  return {
    tag: scan.tag,
    scanned_at: scan.scannedAt.toISOString(),
    scanner: scan.scanner,
    source_date: scan.sourceDate?.toISOString() ?? null,
    status: scan.status,
    summary: scan.summary,
    findings: scan.findings.map(({ fixedIn, ...finding }) => ({ ...finding, fixed_in: fixedIn })),
    sources: scan.sources,
  };
}
