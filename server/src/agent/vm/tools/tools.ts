/** The tools of a session's machine. A name of theirs has no `__`, so that no toolset's tool ever has it. */
import type { App } from "#app.ts";
import type { Tool, Tools, ToolUser } from "#agent/tools/tool.ts";
import { type CallAudit, inMachine, type Work } from "./machine-call.ts";
import { runCode } from "./code.ts";
import { exec } from "./exec.ts";
import { readFile, writeTextFile } from "./files.ts";
import { hasInterpreter } from "./interpreter.ts";

type Name = NonNullable<ToolUser["config"]["vm"]>["tools"][number];

interface Kind {
  description: string;
  properties: Record<string, object>;
  required: readonly string[];
  isRepeatable: boolean;
  runsCommand?: boolean;
  work: Work;
  /** The same actions as requests to a sandbox. */
  audit: CallAudit;
}

const path = { type: "string", minLength: 1, description: "Absolute, or relative to /workspace." };

const pathIn: CallAudit["detail"] = ({ path }) => ({ path });

const kinds: Record<Name, Kind> = {
  exec: {
    description:
      "Runs a shell command in this conversation's own Linux machine, in /workspace. Files stay from call to call. Answers the exit code and what it printed.",
    properties: {
      command: { type: "string", minLength: 1, description: "For /bin/bash -c." },
      timeout_seconds: { type: "integer", minimum: 1, maximum: 3600 },
    },
    required: ["command"],
    isRepeatable: false,
    runsCommand: true,
    work: exec,
    audit: { action: "command.executed", detail: () => ({}) },
  },
  read_file: {
    description: "Reads a text file of the machine; of a long one the first 64 KiB.",
    properties: { path },
    required: ["path"],
    isRepeatable: true,
    work: readFile,
    audit: { action: "file.read", detail: pathIn },
  },
  write_file: {
    description:
      "Writes a text file below /workspace or /tmp of the machine, whole; what was there is replaced.",
    properties: { path, content: { type: "string" } },
    required: ["path", "content"],
    isRepeatable: false,
    work: writeTextFile,
    audit: { action: "file.written", detail: pathIn },
  },
  run_code: {
    description:
      "Runs code in the machine's interpreter, whose variables stay from call to call. Answers what it printed, and the value of the last line.",
    properties: {
      code: { type: "string" },
      language: { enum: ["python", "javascript", "typescript"], description: "Python where absent." },
    },
    required: ["code"],
    isRepeatable: false,
    work: runCode,
    audit: { action: "code.executed", detail: ({ language = "python" }) => ({ language }) },
  },
};

export async function machineTools(app: App, user: ToolUser): Promise<Tools> {
  const { vm, approvals } = user.config;
  if (!vm?.enabled) return { tools: [], unavailable: [] };
  const names = [...new Set(vm.tools)].filter((name) => name !== "run_code" || hasInterpreter(app, vm));
  const tools = names.map((name): Tool => {
    const { description, properties, required, isRepeatable, runsCommand = false, work, audit } = kinds[name];
    return {
      name,
      description,
      parameters: { type: "object", properties, required, additionalProperties: false },
      toolsetId: null,
      policy: vm.policy ?? approvals.default,
      isRepeatable,
      runsCommand,
      call: inMachine(app, user, work, audit),
    };
  });
  return { tools, unavailable: [] };
}
