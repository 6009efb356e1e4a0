/** Opens the blob store that the settings name. */
import { join } from "node:path";
import type { Config } from "#config.ts";
import type { Blobs } from "#lib/blobs/blobs.ts";
import { FsBlobs } from "#lib/blobs/fs.ts";
import { S3Blobs } from "#lib/blobs/s3.ts";

const gigabyte = 1024 ** 3;

export function openBlobs(config: Config): Blobs {
  const { backupsS3Endpoint: endpoint, backupsS3Bucket: bucket } = config;
  const { backupsS3AccessKey: accessKey, backupsS3SecretKey: secretKey } = config;
  if (config.backupsStore === "s3" && endpoint && bucket && accessKey && secretKey) {
    return new S3Blobs({
      endpoint,
      bucket,
      accessKey,
      secretKey,
      region: config.backupsS3Region,
      prefix: config.backupsS3Prefix,
      isVirtualHosted: config.backupsS3VirtualHosted,
    });
  }
  const directory = config.backupsDirectory ?? join(config.dataDir, "backups");
  return new FsBlobs(directory, { reserveBytes: config.diskReserveGb * gigabyte });
}

/** Returns the key prefix of all backups of an add-on. */
export function addonPrefix(addonId: string): string {
  return `backups/${addonId}/`;
}
