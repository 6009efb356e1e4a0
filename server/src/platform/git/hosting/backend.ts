/**
 * Runs git's own `http-backend` (CGI, RFC 3875) for a request. The environment contains the head of the request, and
 * the body is piped to the program as it arrives. The response is a parsed head and a stream.
 */
import type { Readable } from "node:stream";
import { type RunningProgram, start } from "@kontor/runtime/exec.ts";
import { gitArgv, gitEnvironment, type GitSettings } from "../git.ts";

export const services = ["git-upload-pack", "git-receive-pack"] as const;
export type Service = (typeof services)[number];

export interface BackendRequest {
  repositories: string;
  /** Name of the repository's directory, below the directory of hosted repositories. */
  name: string;
  /** True for the request that announces the service (`info/refs`). */
  isAnnouncement: boolean;
  service: Service;
  headers: {
    contentType: string | undefined;
    contentEncoding: string | undefined;
    gitProtocol: string | undefined;
  };
  user: string;
  settings: GitSettings;
  timeoutMs: number;
}

export interface BackendAnswer {
  status: number;
  headers: Record<string, string>;
  body: Readable;
}

/** Limit of the response's head in bytes. The head has four lines. */
const headMaxBytes = 8 * 1024;
const passedOn = ["content-type", "cache-control", "expires", "pragma"];

export function startBackend(request: BackendRequest): RunningProgram {
  const { headers, service, isAnnouncement, name } = request;
  const env = gitEnvironment(
    [
      ["http.uploadpack", "true"],
      ["http.receivepack", "true"],
      // Forbids the download of single files of the repository.
      ["http.getanyfile", "false"],
      ...request.settings,
    ],
    {
      GIT_PROJECT_ROOT: request.repositories,
      GIT_HTTP_EXPORT_ALL: "1",
      PATH_INFO: `/${name}/${isAnnouncement ? "info/refs" : service}`,
      REQUEST_METHOD: isAnnouncement ? "GET" : "POST",
      QUERY_STRING: isAnnouncement ? `service=${service}` : "",
      REMOTE_USER: request.user,
      // Without CONTENT_LENGTH, the body ends with its pipe. With CONTENT_LENGTH, git 2.39 waits forever for the rest
      // of an aborted push.
      ...(headers.contentType === undefined ? {} : { CONTENT_TYPE: headers.contentType }),
      ...(headers.contentEncoding === undefined ? {} : { HTTP_CONTENT_ENCODING: headers.contentEncoding }),
      ...(headers.gitProtocol === undefined ? {} : { GIT_PROTOCOL: headers.gitProtocol }),
    },
  );
  return start(gitArgv(["http-backend"]), { cwd: "/", env, timeoutMs: request.timeoutMs });
}

/** Returns the head of the response; the caller reads the body. Rejects if the process sends no response. */
export async function readAnswer({ stdout }: RunningProgram): Promise<BackendAnswer> {
  let bytes = Buffer.alloc(0);
  for (;;) {
    const end = bytes.indexOf("\r\n\r\n");
    if (end >= 0) {
      stdout.unshift(bytes.subarray(end + 4));
      return { ...parseHead(bytes.toString("latin1", 0, end)), body: stdout };
    }
    if (bytes.length > headMaxBytes) throw new Error("git http-backend sent no response head");
    const piece = await nextPiece(stdout);
    if (piece === null) throw new Error("git http-backend ended without a response");
    bytes = Buffer.concat([bytes, piece]);
  }
}

/** Returns the next chunk; null at the end. Later readers continue after the chunk. */
function nextPiece(stream: Readable): Promise<Buffer | null> {
  return new Promise((resolve, reject) => {
    const settle = () => {
      const piece = stream.read() as Buffer | null;
      if (piece === null && !stream.readableEnded && !stream.destroyed) return;
      for (const name of ["readable", "end", "close"] as const) stream.off(name, settle);
      stream.off("error", reject);
      resolve(piece);
    };
    for (const name of ["readable", "end", "close"] as const) stream.on(name, settle);
    stream.once("error", reject);
    settle();
  });
}

function parseHead(text: string): Pick<BackendAnswer, "status" | "headers"> {
  const lines = text.split("\r\n").map((line) => /^([\w-]+): *(.*)$/.exec(line)?.slice(1) ?? []);
  const all = new Map(lines.map(([name = "", value = ""]) => [name.toLowerCase(), value]));
  const status = Number(/^\d{3}/.exec(all.get("status") ?? "200")?.[0] ?? 500);
  const headers = passedOn.flatMap((name) => (all.has(name) ? [[name, all.get(name)!]] : []));
  return { status, headers: Object.fromEntries(headers) as Record<string, string> };
}
