/** Tools of a session's machine. Their names have no `__`, so that they never collide with tools of a toolset. */
import type { App } from "#app.ts";
import type { Tool, Tools, ToolUser } from "#agent/tools/tool.ts";
import { type CallAudit, runInMachine, type Work } from "./machine-call.ts";
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
  /** Audit actions of the tools, which are the same as for requests to a sandbox. */
  audit: CallAudit;
}

const path = { type: "string", minLength: 1, description: "Absolute, or relative to /workspace." };

const pathIn: CallAudit["detail"] = ({ path }) => ({ path });

const kinds: Record<Name, Kind> = {
  exec: {
    description:
      "Runs a shell command in this conversation's own Linux machine, in /workspace. Files persist " +
      "between calls. Returns the exit code and the output.",
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
    description: "Reads a text file of the machine, at most its first 64 KiB.",
    properties: { path },
    required: ["path"],
    isRepeatable: true,
    work: readFile,
    audit: { action: "file.read", detail: pathIn },
  },
  write_file: {
    description:
      "Writes a whole text file below /workspace or /tmp of the machine, and replaces an existing " + "file.",
    properties: { path, content: { type: "string" } },
    required: ["path", "content"],
    isRepeatable: false,
    work: writeTextFile,
    audit: { action: "file.written", detail: pathIn },
  },
  run_code: {
    description:
      "Runs code in the machine's interpreter, whose variables persist between calls. Returns the " +
      "output and the value of the last line.",
    properties: {
      code: { type: "string" },
      language: { enum: ["python", "javascript", "typescript"], description: "Default: Python." },
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
      call: runInMachine(app, user, work, audit),
    };
  });
  return { tools, unavailable: [] };
}
