/** Parameters and fields that several parts of this API share, each with its description. */
import { z } from "zod";

/** Path parameter of every operation on one sandbox. */
export const sandboxIdParameter = z
  .string()
  .max(64)
  .describe("Id of the sandbox, such as `sbx_5f2k8v1c9q0m3x7b4n6d`.");

/** Query parameters of a list with pages. */
export const pageQuery = {
  cursor: z
    .string()
    .max(2048)
    .optional()
    .describe("`next_cursor` of the previous page. Default: the first page."),
  limit: z.int().min(1).max(100).default(50).describe("Maximum of items on a page, 1 to 100. Default: 50."),
};

export const nextCursor = z.string().nullable().describe("`cursor` of the next page. Null on the last page.");

export const processId = z.int().describe("Process id inside the sandbox.");

export const outputStream = z.enum(["stdout", "stderr"]).describe("Output stream: `stdout` or `stderr`.");
