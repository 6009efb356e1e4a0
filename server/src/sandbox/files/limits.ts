/** Documented limits of file calls that transfer content in JSON. */
export const fileMaxBytes = 16 * 1024 ** 2;
export const batchMaxFiles = 64;
/** Maximum of all contents together, decoded. */
export const batchMaxBytes = 48 * 1024 ** 2;

/** Maximum of directory entries in one response. */
export const listMaxEntries = 10_000;

/** Maximum of the body of a write. Base64 encodes three bytes as four; the rest is for the surrounding JSON. */
export const fileBodyLimit = Math.ceil((fileMaxBytes * 4) / 3) + 64 * 1024;

/**
 * Maximum size of a batch's body: contents in base64, and each file's mode and path, which JSON may escape to six times
 * its length.
 */
export const batchBodyLimit = Math.ceil((batchMaxBytes * 4) / 3) + batchMaxFiles * (6 * 4096 + 64);

/** Maximum of an upload by signed URL. */
export const uploadMaxBytes = 512 * 1024 ** 2;

/** Roots that the file API may write to. Exec has no such limit. */
export function writableRoots(sandbox: { volume_id: string | null }): string[] {
  return ["/workspace", "/tmp", ...(sandbox.volume_id === null ? [] : ["/persist"])];
}

/** Mode of a written file: 0644, as a JSON integer. */
export const defaultMode = 0o644;
