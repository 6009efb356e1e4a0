/** The wire of files: contents are base64, modes are integers. */
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
  .describe("Absolute, or relative to /workspace.");

const Mode = z.int().min(0).max(0o7777).describe("Permission bits as an integer: 0644 is 420.");
// Not z.base64(): its pattern over 22 MB of text costs more than decoding it. `decode` checks while it decodes.
const Content = z.string().describe("Base64.");

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
export const FileWritten = z.object({ path: z.string(), bytes_written: z.int() }).meta({ id: "FileWritten" });

export const Presign = z
  .strictObject({
    path: Path,
    expires_in: z.int().min(60).max(3600).default(600).describe("Seconds."),
  })
  .meta({ id: "FilePresign" });

export const Presigned = z
  .object({
    url: z.string().describe("Needs no token. Whoever holds it may use it until it expires."),
    method: z.enum(["GET", "PUT"]),
    path: z.string(),
    expires_at: z.iso.datetime(),
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
    .describe("Maximum of directory entries in one response. Extension."),
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
  recursive: z.boolean().default(false).describe("All directories below as well, up to 8192."),
});

const Changed = { path: z.string(), is_dir: z.boolean() };

/** One `data:` line of a watch. `watching` comes first, `ended` last. */
export const WatchEvent = z
  .discriminatedUnion("kind", [
    z.object({ kind: z.literal("watching"), path: z.string(), recursive: z.boolean() }),
    z.object({ kind: z.enum(["created", "modified", "deleted"]), ...Changed }),
    z.object({ kind: z.literal("moved"), ...Changed, from: z.string() }),
    z
      .object({ kind: z.literal("overflow") })
      .describe("Changes were lost here, because they came faster than they were read."),
    z.object({ kind: z.literal("ended"), code: z.string(), message: z.string() }),
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
    name: z.string(),
    is_dir: z.boolean(),
    size: z.int(),
    mode: z.int(),
    modified_at: timestamp,
    ...ownership,
  })
  .meta({ id: "DirectoryEntry" });

export const FileRead = z
  .discriminatedUnion("is_dir", [
    z.object({
      path: z.string(),
      is_dir: z.literal(false),
      content: Content.optional().describe("Content as base64. Absent if `content_text` is present."),
      content_text: z
        .string()
        .optional()
        .describe("Content of a UTF-8 file as text, with `text=true`. Extension."),
      size: z.int(),
    }),
    z.object({
      path: z.string(),
      is_dir: z.literal(true),
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
    path: z.string(),
    exists: z.boolean(),
    is_dir: z.boolean().nullable(),
    size: z.int().nullable(),
    mode: z.int().nullable(),
    modified_at: timestamp.nullable(),
    ...ownership,
  })
  .meta({ id: "FileStat" });

export const MakeDirectory = z
  .strictObject({ path: Path, mode: Mode.default(0o755), parents: z.boolean().default(true) })
  .meta({ id: "MakeDirectory" });

export const Move = z
  .strictObject({ from: Path, to: Path, overwrite: z.boolean().default(false) })
  .meta({ id: "FileMove" });

export const Batch = z
  .strictObject({
    files: z
      .array(z.strictObject({ path: z.string(), content: z.string(), mode: Mode.default(defaultMode) }))
      .min(1)
      .max(batchMaxFiles),
  })
  .meta({ id: "FileBatch" });
export type Batch = z.output<typeof Batch>;

export const BatchResult = z
  .object({
    results: z.array(
      z.object({
        path: z.string(),
        bytes_written: z.int().nullable(),
        error: z.object({ code: z.string(), message: z.string() }).nullable(),
      }),
    ),
  })
  .meta({ id: "FileBatchResult" });
export type BatchResult = z.output<typeof BatchResult>;
