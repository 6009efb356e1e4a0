/** Caps of the one-shot file calls, as the document gives them. */
export const fileMaxBytes = 16 * 1024 ** 2;
export const batchMaxFiles = 64;
/** Maximum of all contents together, decoded. */
export const batchMaxBytes = 48 * 1024 ** 2;

/** Maximum of directory entries in one response. */
export const listMaxEntries = 10_000;

/** Base64 makes four bytes of three; the rest is the JSON around it. */
export const fileBodyLimit = Math.ceil((fileMaxBytes * 4) / 3) + 64 * 1024;

/** Maximum of the body: contents in base64, and each file's mode and path, which JSON may escape to six times its length. */
export const batchBodyLimit = Math.ceil((batchMaxBytes * 4) / 3) + batchMaxFiles * (6 * 4096 + 64);

/** A pre-signed upload. */
export const uploadMaxBytes = 512 * 1024 ** 2;

/** Where the file API may write. Exec is not bound by this. */
export function writableRoots(sandbox: { volume_id: string | null }): string[] {
  return ["/workspace", "/tmp", ...(sandbox.volume_id === null ? [] : ["/persist"])];
}

/** 0644, as a JSON integer. */
export const defaultMode = 0o644;
