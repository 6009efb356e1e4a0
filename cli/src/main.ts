/**
 * The entry point of the command. Each subcommand is a function in `commands/`. A Failure is printed with its cure; any
 * other error is a defect and is printed with its stack.
 */
import { Command } from "commander";
import type { AttackOptions } from "./commands/develop/attack.ts";
import { backup } from "./commands/backup.ts";
import { restore } from "./commands/restore.ts";
import { restart } from "./commands/restart.ts";
import { check, test } from "./commands/develop/test.ts";
import { config } from "./commands/config.ts";
import { dev } from "./commands/develop/dev.ts";
import { devWorld } from "./commands/develop/dev-world.ts";
import { down } from "./commands/down.ts";
import { doctor } from "./commands/doctor.ts";
import { prepare } from "./commands/prepare.ts";
import { operate, operatorNouns } from "./commands/operator.ts";
import { uninstall } from "./commands/uninstall.ts";
import { up } from "./commands/up.ts";
import { upgrade } from "./commands/upgrade.ts";
import { Failure } from "./lib/failure.ts";

const data = ["--data <dir>", "data directory (else KONTOR_DATA_DIR, else /var/lib/kontor)"] as const;
const program = new Command("kontor").description(
  "A self-hosted server for deployments, sandboxes and agents.",
);

program
  .command("up")
  .description("set up what is missing, start the server and prove that it works")
  .option("-d, --detach", "come back once it is up; the server runs on")
  .option("--port <n>", "port to listen on (8080)")
  .option("--prepare <groups>", "also prepare images now: addons, functions, apps (by commas), all or none")
  .option(...data)
  .action(up);
program
  .command("down")
  .description("drain and stop the server and its database")
  .option(...data)
  .action(down);
program
  .command("restart")
  .description("end the server and start it again; its doors stay open, and who comes meanwhile waits")
  .option(...data)
  .action(restart);
program
  .command("upgrade")
  .description(
    "replace the code of a running installation; the old code comes back if the new one does not start",
  )
  .option("--to <name>", "commit, tag, branch or directory (else the newest commit of the branch it follows)")
  .option("--dry-run", "check, and show what would change")
  .option("--skip-doctor", "do not check the host with kontor doctor")
  .option("--roll-back", "roll back an upgrade that was interrupted")
  .option(...data)
  .action(upgrade);
program
  .command("prepare", { hidden: true })
  .description("set up what this code needs on the host, without a server")
  .action(prepare);
program
  .command("backup")
  .description("write the whole installation into one file, while the server runs")
  .argument("<target>", "a new file, or a directory, which gets a file named by date")
  .option(...data)
  .action(backup);
program
  .command("restore")
  .description("restore a backup into an empty data directory and database, on this or another host")
  .argument("<file>", "a file written by kontor backup")
  .option(...data)
  .action(restore);
program
  .command("uninstall")
  .description("remove the installation from this host: server, machines, network, files and settings")
  .option("--yes", "do not ask; also ends a running server")
  .option("--keep-settings", "keep the files in /etc, which other installations of this host use too")
  .option(...data)
  .action(uninstall);
program
  .command("test")
  .description("set up what is missing and run every test")
  .option("--fresh-root", "also prove the set-up in a new minimal Debian root (opt-in, some minutes)")
  .action(test);
program
  .command("check")
  .description("format, lint, layers, types, generated files and unit tests")
  .option("--changed", "only the files that differ from main, and the tests that they reach")
  .action(check);
program
  .command("attack")
  .description("send hostile requests to every operation of an in-process server, and report its faults")
  .option("--minutes <n>", "duration in minutes", "10")
  .option("--seed <n>", "first seed (default: random); each finding prints its seed")
  .option("--only <operation>", "one operationId of the OpenAPI documents")
  .action(async (options: AttackOptions) => (await import("./commands/develop/attack.ts")).attack(options));
program
  .command("doctor")
  .description("what this host can do, and what is missing")
  .option("--json", "for programs")
  .option(...data)
  .action(doctor);
program
  .command("bench")
  .description("run the benchmarks against a server of their own")
  .argument("[names...]", "only these")
  // The module is loaded here only: a server starts without the code of benchmarks and tests
  .action(async (names: string[]) => (await import("./commands/develop/bench.ts")).bench(names));
program
  .command("config")
  .description("every setting, its value and where it came from")
  .option("--json", "for programs")
  .option(...data)
  .action(config);
program
  .command("dev")
  .description("run the server and start it anew when its source changes")
  .option("--port <n>", "port to listen on (8080)")
  .option(...data)
  .action(dev);
program
  .command("dev-world")
  .description("run a model, an HTTP tool and a webhook receiver on loopback, for trying Kontor")
  .option("--port <n>", "port to listen on", "8090")
  .option("-d, --detach", "return once it is up; it runs on")
  .option("--stop", "stop the one that runs on the port")
  .action(devWorld);
for (const [noun, description] of Object.entries(operatorNouns)) {
  program
    .command(noun)
    .description(description)
    .argument("[args...]")
    .allowUnknownOption()
    .helpOption(false)
    .action((args: string[]) => operate(noun, args));
}

// A reader that closes the pipe early (`kontor config | head`) is not a defect.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code !== "EPIPE") throw error;
  process.exit();
});

try {
  await program.parseAsync();
} catch (error) {
  if (!(error instanceof Failure)) throw error;
  process.stderr.write(
    `kontor: ${error.message}\n${error.hint ? `${error.hint.replaceAll(/^/gm, "  ")}\n` : ""}`,
  );
  process.exitCode = error.exitCode;
}
