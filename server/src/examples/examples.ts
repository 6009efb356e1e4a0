/**
 * Examples of the three API documents: `<api>.json` holds the parameters, request, responses and first events of each
 * operation, by `operationId`. `node server/src/openapi.ts --write` embeds them as `example`, and examples.test.ts
 * checks each against its schema. They belong to one story: Ada's shop, its support agent and their sandboxes.
 *
 * To add the example of a new operation, write its contract case first, then record the server's responses to it:
 *
 * KONTOR_RECORD_EXAMPLES=1 vitest run server/test/contract/record-examples.test.ts oxfmt server/src/examples node
 * server/src/openapi.ts --write
 *
 * The recorder adds the operations that the file lacks, and fields that a schema requires and an example lacks. It
 * leaves the rest alone: delete an entry to record it anew. Ids, times, tokens and hosts become stable. Then read the
 * entry: replace names that only a test would use, and write the lines of a stream in `events`.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Api } from "#http/define-route.ts";
import type { Examples } from "#http/documents/openapi.ts";

export function examplesFile(api: Api): string {
  return join(import.meta.dirname, `${api}.json`);
}

export function readExamples(api: Api): Examples {
  return JSON.parse(readFileSync(examplesFile(api), "utf8")) as Examples;
}
