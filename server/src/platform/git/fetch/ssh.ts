/**
 * Configuration of ssh for one checkout: a configuration file, a key and the trusted host keys, in a directory that is
 * removed afterwards. Ssh connects to a vetted address under the host's own name. Ssh never prompts, offers only the
 * project's key, and forwards no port or agent.
 */
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { SshRemote } from "./remotes.ts";

export interface SshIdentity {
  /** Private key of the project; null if the host requires no key. */
  privateKey: string | null;
  /** Lines of known_hosts from earlier fetches of the project. */
  knownHosts: string;
  /** File with the operator's known hosts; null if there is none. If there is one, only its hosts are trusted. */
  strictFile: string | null;
}

export interface Ssh {
  env: Record<string, string>;
  /** Returns the trusted host keys: earlier ones, and those of this fetch. */
  knownHosts(): Promise<string>;
}

/** Limit of a project's known host keys, in bytes. */
const knownHostsMaxBytes = 32 * 1024;

export async function prepareSsh(
  directory: string,
  remote: SshRemote,
  address: string,
  { privateKey, knownHosts, strictFile }: SshIdentity,
): Promise<Ssh> {
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const [config, key, known] = ["config", "key", "known_hosts"].map((name) => join(directory, name)) as [
    string,
    string,
    string,
  ];
  if (privateKey !== null) await writeFile(key, privateKey, { mode: 0o600 });
  await writeFile(known, knownHosts, { mode: 0o600 });
  const alias = remote.port === null ? remote.host : `[${remote.host}]:${remote.port}`;
  const lines = {
    HostName: address,
    HostKeyAlias: alias,
    UserKnownHostsFile: quotePath(strictFile ?? known),
    GlobalKnownHostsFile: "/dev/null",
    StrictHostKeyChecking: strictFile === null ? "accept-new" : "yes",
    UpdateHostKeys: "no",
    HashKnownHosts: "no",
    IdentityFile: privateKey === null ? "none" : quotePath(key),
    IdentitiesOnly: "yes",
    IdentityAgent: "none",
    BatchMode: "yes",
    PreferredAuthentications: "none,publickey",
    ClearAllForwardings: "yes",
    ForwardAgent: "no",
    PermitLocalCommand: "no",
    ProxyCommand: "none",
    ControlMaster: "no",
    ControlPath: "none",
    ConnectTimeout: "15",
    ServerAliveInterval: "15",
    ServerAliveCountMax: "4",
    LogLevel: "ERROR",
  };
  const text = Object.entries(lines).map(([name, value]) => `  ${name} ${value}`);
  await writeFile(config, ["Host *", ...text, ""].join("\n"), { mode: 0o600 });
  return {
    env: {
      // Git runs this text in sh, so it is constant. Host and path follow as arguments.
      GIT_SSH_COMMAND: 'exec ssh -F "$KONTOR_SSH_CONFIG"',
      GIT_SSH_VARIANT: "ssh",
      KONTOR_SSH_CONFIG: config,
    },
    async knownHosts() {
      const now = await readFile(known, "utf8");
      return Buffer.byteLength(now) > knownHostsMaxBytes ? knownHosts : now;
    },
  };
}

/** Quotes a path for ssh_config(5), which has no escape for a quote and expands percent signs. */
function quotePath(path: string): string {
  return `"${path.replaceAll("%", "%%")}"`;
}
