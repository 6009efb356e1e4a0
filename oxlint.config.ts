import { oxlintRules } from "./cli/src/lint/oxlint-rules.ts";

export default oxlintRules;
