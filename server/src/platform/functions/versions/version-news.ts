/** Events of a stream of a version's build log. */
import type { LogNews } from "#platform/step-log.ts";
import type { VersionRow } from "../store.ts";
import type { VersionStep } from "../tables.ts";

export type VersionState = VersionRow["state"];
export type VersionNews = LogNews<VersionStep, VersionState>;
