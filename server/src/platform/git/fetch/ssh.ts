/**
 * What ssh is told for one checkout: a configuration, a key and the host keys that are trusted, in a directory that is
 * gone afterwards. It connects to an address that was judged, under the host's own name; it asks nobody anything, shows
 * no key but the project's, and forwards nothing.
 */
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { SshRemote } from "./remotes.ts";

export interface SshIdentity {
  /** Null: the host lets anybody in. */
  privateKey: string | null;
  /** Lines of known_hosts: those seen before. */
  knownHosts: string;
  /** A file of the operator's: nobody else is trusted. */
  strictFile: string | null;
}

export interface Ssh {
  env: Record<string, string>;
  /** What is trusted now: those before, and whom ssh met for the first time. */
  knownHosts(): Promise<string>;
}

/** More than this is no list of the hosts of one project. */
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
    UserKnownHostsFile: quoted(strictFile ?? known),
    GlobalKnownHostsFile: "/dev/null",
    StrictHostKeyChecking: strictFile === null ? "accept-new" : "yes",
    UpdateHostKeys: "no",
    HashKnownHosts: "no",
    IdentityFile: privateKey === null ? "none" : quoted(key),
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
      // Git hands this to sh, so it is the same text whatever is fetched; host and path are arguments behind it.
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

/** ssh_config(5) knows no escape for a quote, and expands what stands behind a percent sign. */
function quoted(path: string): string {
  return `"${path.replaceAll("%", "%%")}"`;
}
