/** Wire schemas of images. */
import { z } from "zod";
import type { listAppImages } from "#builds/app-images.ts";
import type { ImageScan } from "#builds/scan.ts";
import { ProjectId } from "../input/schema.ts";

const timestamp = z.iso.datetime();

export const ImageParams = z.strictObject({
  project_id: ProjectId,
  tag: z.string().max(128).describe("Tag of the image: `b` and its number, such as `b12`."),
});

export const RegistryImage = z
  .object({
    tag: z.string().describe("Tag of the image: `b` and its number, such as `b12`."),
    digest: z.string().describe("Digest of the image's manifest."),
    size_bytes: z.int().describe("Size of all layers in bytes, including layers that other images share."),
    created_at: timestamp.describe("Time when the image was built (UTC)."),
    deployment_id: z
      .guid()
      .nullable()
      .describe("Id (UUID) of the deployment that built the image. Null if no deployment built it."),
    live: z.boolean().describe("True if an environment serves the image, or a running deployment uses it."),
    pinned: z
      .boolean()
      .describe(
        "True if the image is live, in deployment, or one of the last three that an environment served.",
      ),
  })
  .meta({ id: "RegistryImage" });
export type RegistryImage = z.output<typeof RegistryImage>;

/** An image with its use, as `toImage` converts it to JSON. */
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
    tag: z.string().describe("Tag of the scanned image, such as `b12`."),
    scanned_at: timestamp.describe("Time when the scan ended (UTC)."),
    scanner: z.string().describe("Name of the scanner: `kontor`."),
    source_date: timestamp
      .nullable()
      .describe("Date of the oldest advisory data used. Null if no source has a date."),
    status: z
      .enum(["complete", "partial", "unavailable"])
      .describe(
        "`partial`: a source is unavailable. `unavailable`: no source responded, so the result is unknown.",
      ),
    summary: z
      .object({
        critical: z.int().describe("Number of critical findings."),
        high: z.int().describe("Number of findings of high severity."),
        medium: z.int().describe("Number of findings of medium severity."),
        low: z.int().describe("Number of findings of low severity."),
        unknown: z.int().describe("Number of findings of unknown severity."),
      })
      .describe("Number of findings by severity."),
    findings: z
      .array(
        z.object({
          id: z
            .string()
            .describe(
              "Advisory, such as `CVE-2024-4068` or `GHSA-…`; for Debian, the fix: `openssl@3.0.17-1`.",
            ),
          package: z.string().describe("Name of the affected package."),
          installed: z.string().describe("Installed version; for npm, the affected range, such as `<3.0.3`."),
          fixed_in: z.string().nullable().describe("Version that has the fix. Null for npm."),
          severity: severity.describe("Severity by the source. `unknown` for Debian, which gives none."),
          title: z.string().describe("Title of the advisory."),
          source: z.string().describe("Source of the finding: `debian-security` or `npm-audit`."),
        }),
      )
      .describe("Known vulnerabilities of the image, at most 2,000 from each source."),
    sources: z
      .array(
        z.object({
          source: z.string().describe("Name of the source: `debian-security` or `npm-audit`."),
          status: z
            .enum(["answered", "unavailable", "not_applicable"])
            .describe("Result of the query. `not_applicable`: the image has no packages of this source."),
          detail: z.string().nullable().describe("Reason why the source is unavailable. Null otherwise."),
        }),
      )
      .describe("Advisory sources that were queried, with the error for each that failed."),
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
