/**
 * Measures the tree of a commit before its files are written to disk. A pack of a few kilobytes can contain a tree of
 * billions of files. Files are counted while git lists them, and the listing is aborted at the limit.
 */
import { start } from "@kontor/runtime/exec.ts";
import { repositoryTooLarge } from "../errors.ts";
import { gitArgv, gitEnvironment, mebibyte } from "../git.ts";

export interface Submodule {
  path: string;
  sha: string;
}

/** Remaining files and bytes of a checkout's limits. The checkout's submodules share this budget. */
export interface Budget {
  files: number;
  bytes: number;
}

export const maxFiles = 250_000;
/** Limit of an entry in bytes: the longest path of Linux, and the fields before the path. */
const maxEntryBytes = 8192;

/** Subtracts the tree's files and bytes from the budget. Returns the submodules of the tree. */
export async function measureTree(
  gitDir: string,
  sha: string,
  budget: Budget,
  options: { timeoutMs: number; limitBytes: number; signal: AbortSignal },
): Promise<Submodule[]> {
  // With `-t`, directories count as well. Otherwise no limit would end a tree of directories alone.
  const listing = start(gitArgv(["ls-tree", "-r", "-t", "-l", "-z", "--full-tree", sha]), {
    cwd: gitDir,
    env: gitEnvironment([], { GIT_DIR: gitDir }),
    timeoutMs: options.timeoutMs,
  });
  listing.stdin.end();
  const give = () => listing.end();
  options.signal.addEventListener("abort", give, { once: true });
  const submodules: Submodule[] = [];
  let rest = Buffer.alloc(0);
  try {
    for await (const piece of listing.stdout as AsyncIterable<Buffer>) {
      const bytes = Buffer.concat([rest, piece]);
      let from = 0;
      for (let end = bytes.indexOf(0, from); end >= 0; end = bytes.indexOf(0, from)) {
        const found = count(bytes.toString("utf8", from, end), budget);
        if (found) submodules.push(found);
        from = end + 1;
      }
      rest = bytes.subarray(from);
      if (budget.files < 0 || rest.length > maxEntryBytes) throw repositoryTooLarge("files", maxFiles);
      if (budget.bytes < 0) throw repositoryTooLarge("megabytes", Math.floor(options.limitBytes / mebibyte));
    }
  } finally {
    listing.end();
    options.signal.removeEventListener("abort", give);
  }
  options.signal.throwIfAborted();
  const { code } = await listing.ended;
  if (code !== 0) throw new Error("the tree of the commit could not be listed");
  return submodules;
}

/** Counts an entry of the form `<mode> <type> <id> <size>\t<path>`. Returns the entry if the entry is a submodule. */
function count(entry: string, budget: Budget): Submodule | undefined {
  const [, type, sha = "", size, path = ""] = /^\d+ (\w+) ([0-9a-f]+) +(\S+)\t(.*)$/s.exec(entry) ?? [];
  budget.files -= 1;
  if (type === "blob") budget.bytes -= Number(size);
  return type === "commit" ? { path, sha } : undefined;
}
