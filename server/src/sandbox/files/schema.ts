/** Request and response schemas of files: contents are base64, modes are integers. */
import { z } from "zod";
import { batchMaxFiles, defaultMode, listMaxEntries } from "./limits.ts";

export const Path = z
  .string()
  .min(1)
  .refine((path) => Buffer.byteLength(path) <= 4095, { error: "must be at most 4095 bytes" })
  .refine((path) => !path.includes("\0"), { error: "must not contain NUL" })
  .refine((path) => path.isWellFormed(), {
    error: "must be valid Unicode, without half of a surrogate pair",
  })
  .describe("Path, absolute or relative to /workspace.");

const Mode = z.int().min(0).max(0o7777).describe("Permission bits as an integer: 0644 is 420.");
// The schema is not z.base64(), whose pattern over 22 MB of text costs more than decoding it. `decode` checks while it
// decodes.
const Content = z.string().describe("Content as base64.");

export const FileWrite = z
  .strictObject({
    path: Path,
    content: Content.optional(),
    content_text: z.string().optional().describe("Text to write as UTF-8, instead of `content`. Extension."),
    mode: Mode.default(defaultMode),
  })
  .refine(({ content, content_text }) => (content === undefined) !== (content_text === undefined), {
    path: ["content"],
    error: "is required (or content_text, but not both)",
  })
  .refine(({ content_text }) => content_text?.isWellFormed() ?? true, {
    path: ["content_text"],
    error: "must be valid Unicode, without half of a surrogate pair",
  })
  .meta({ id: "FileWrite" });
export const FileWritten = z
  .object({
    path: z.string().describe("Absolute path of the file."),
    bytes_written: z.int().describe("Number of bytes written, which is the new size of the file."),
  })
  .meta({ id: "FileWritten" });

export const Presign = z
  .strictObject({
    path: Path,
    expires_in: z
      .int()
      .min(60)
      .max(3600)
      .default(600)
      .describe("Seconds until the URL expires, 60 to 3600. Default: 600."),
  })
  .meta({ id: "FilePresign" });

export const Presigned = z
  .object({
    url: z.string().describe("Pre-signed URL. Any client can use it without a token until `expires_at`."),
    method: z
      .enum(["GET", "PUT"])
      .describe("HTTP method of the URL: `GET` for a download, `PUT` for an upload."),
    path: z.string().describe("Absolute path of the file."),
    expires_at: z.iso.datetime().describe("Time from which the URL is refused with `url_expired`."),
  })
  .meta({ id: "FilePresigned" });

export const FileQuery = z.strictObject({ path: Path });

export const FileReadQuery = z.strictObject({
  path: Path,
  text: z
    .boolean()
    .default(false)
    .describe("Return a UTF-8 file as `content_text` instead of `content`. Default: false. Extension."),
  limit: z
    .int()
    .min(1)
    .max(listMaxEntries)
    .default(listMaxEntries)
    .describe("Maximum of directory entries in one response, 1 to 10,000. Default: 10,000. Extension."),
  cursor: z.string().max(4096).optional().describe("`next_cursor` of the previous page. Extension."),
});

/** Options for reading a file or a directory. */
export type FileReading = Partial<Omit<z.output<typeof FileReadQuery>, "path">>;

export const FileDeleteQuery = z.strictObject({
  path: Path,
  recursive: z
    .boolean()
    .default(false)
    .describe("Delete a directory with its contents. Default: false. Extension."),
});

export const WatchQuery = z.strictObject({
  path: Path.default("/workspace"),
  recursive: z
    .boolean()
    .default(false)
    .describe("Watch the directories below as well, up to 8192. Default: false."),
});

const Changed = {
  path: z.string().describe("Absolute path of the changed entry; after a move, its new path."),
  is_dir: z.boolean().describe("True if the entry is a directory."),
};

/** A `data:` line of a watch. `watching` comes first, `ended` last. */
export const WatchEvent = z
  .discriminatedUnion("kind", [
    z.object({
      kind: z.literal("watching").describe("First event: the watch has begun."),
      path: z.string().describe("Absolute path of the watched directory."),
      recursive: z.boolean().describe("True if the directories below are watched as well."),
    }),
    z.object({
      kind: z.enum(["created", "modified", "deleted"]).describe("Kind of change to the entry."),
      ...Changed,
    }),
    z.object({
      kind: z.literal("moved").describe("Move or rename within the watched directories."),
      ...Changed,
      from: z.string().describe("Absolute path before the move."),
    }),
    z
      .object({
        kind: z.literal("overflow").describe("Mark at the place of lost changes; read the directory again."),
      })
      .describe("Changes were lost here, because they came faster than they were read."),
    z.object({
      kind: z.literal("ended").describe("Last event: the watch is over."),
      code: z
        .string()
        .describe(
          "Reason for programs, such as `sandbox_paused`, or `path_not_found` if the directory was deleted.",
        ),
      message: z.string().describe("Reason in one sentence."),
    }),
  ])
  .meta({ id: "FileWatchEvent" });
export type WatchEvent = z.output<typeof WatchEvent>;

const timestamp = z.iso.datetime();

const ownership = {
  uid: z
    .int()
    .nullable()
    .describe("Id of the owning user. Null in a sandbox that an older server paused. Extension."),
  gid: z.int().nullable().describe("Id of the owning group. Null if `uid` is null. Extension."),
  link_target: z
    .string()
    .nullable()
    .describe(
      "Target of a symlink, as stored in it. Null for other files. The other fields describe the target, or the symlink itself if the target is missing. Extension.",
    ),
};

export const DirectoryEntry = z
  .object({
    name: z.string().describe("Name of the entry, without its directory."),
    is_dir: z.boolean().describe("True if the entry is a directory."),
    size: z.int().describe("Size in bytes. 0 for a directory."),
    mode: z.int().describe("Permission bits as an integer: 0644 is 420."),
    modified_at: timestamp.describe("Time of the last modification."),
    ...ownership,
  })
  .meta({ id: "DirectoryEntry" });

export const FileRead = z
  .discriminatedUnion("is_dir", [
    z.object({
      path: z.string().describe("Absolute path of the file."),
      is_dir: z.literal(false).describe("False: the path is a file."),
      content: Content.optional().describe("Content as base64. Absent if `content_text` is present."),
      content_text: z
        .string()
        .optional()
        .describe("Content of a UTF-8 file as text, with `text=true`. Extension."),
      size: z.int().describe("Size of the content in bytes, at most 16 MiB."),
    }),
    z.object({
      path: z.string().describe("Absolute path of the directory."),
      is_dir: z.literal(true).describe("True: the path is a directory."),
      entries: z.array(DirectoryEntry).describe("Entries in byte order of their names."),
      next_cursor: z
        .string()
        .nullable()
        .describe("Cursor of the next page. Null on the last page. Extension."),
    }),
  ])
  .meta({ id: "FileRead" });
export type FileRead = z.output<typeof FileRead>;

export const FileStat = z
  .object({
    path: z.string().describe("Absolute path that was examined."),
    exists: z.boolean().describe("True if a file or directory is at the path."),
    is_dir: z.boolean().nullable().describe("True for a directory. Null if nothing exists."),
    size: z.int().nullable().describe("Size in bytes, 0 for a directory. Null if nothing exists."),
    mode: z.int().nullable().describe("Permission bits as an integer: 0644 is 420. Null if nothing exists."),
    modified_at: timestamp.nullable().describe("Time of the last modification. Null if nothing exists."),
    ...ownership,
  })
  .meta({ id: "FileStat" });

export const MakeDirectory = z
  .strictObject({
    path: Path,
    mode: Mode.default(0o755),
    parents: z
      .boolean()
      .default(true)
      .describe("Make missing parents, and accept a directory that exists. Default: true."),
  })
  .meta({ id: "MakeDirectory" });

export const Move = z
  .strictObject({
    from: Path,
    to: Path,
    overwrite: z
      .boolean()
      .default(false)
      .describe("Replace an existing target. Default: false, an existing target is an error."),
  })
  .meta({ id: "FileMove" });

export const Batch = z
  .strictObject({
    files: z
      .array(
        z.strictObject({
          path: z.string().describe("Path of the file: absolute, or relative to /workspace."),
          content: z.string().describe("Content as base64, at most 16 MiB after decoding."),
          mode: Mode.default(defaultMode),
        }),
      )
      .min(1)
      .max(batchMaxFiles)
      .describe("Files to write, in order; 1 to 64."),
  })
  .meta({ id: "FileBatch" });
export type Batch = z.output<typeof Batch>;

export const BatchResult = z
  .object({
    results: z
      .array(
        z.object({
          path: z.string().describe("Path of the file as in the request."),
          bytes_written: z.int().nullable().describe("Number of bytes written. Null if this file failed."),
          error: z
            .object({
              code: z.string().describe("Stable code for programs, such as `not_permitted`."),
              message: z.string().describe("The error in one sentence."),
            })
            .nullable()
            .describe("Error of this file. Null if it was written."),
        }),
      )
      .describe("Result of each file, in the order of the request."),
  })
  .meta({ id: "FileBatchResult" });
export type BatchResult = z.output<typeof BatchResult>;
