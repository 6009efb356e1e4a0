/**
 * Attacks every operation of the three documents. The attacks use each credential, ids of other tenants and kinds,
 * hostile values in each field, and hostile bodies, content types and queries. No response may be a server error, leak,
 * or violate its schema.
 *
 * In `./kontor test` a fixed seed samples the attacks. `./kontor attack` sets KONTOR_ATTACK_MINUTES and runs new seeds
 * for that time; requests with high CPU time are then findings too. KONTOR_ATTACK_SEED and KONTOR_ATTACK_ONLY (an
 * operation's id) repeat a finding.
 */
import { writeSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { cases } from "../contract/cases/all.ts";
import { jsonBodyOf, type Operation, operationsOf } from "../contract/operations.ts";
import { openWorld, type Reply } from "../contract/world.ts";
import { type Attack, attacksOn } from "./attacks.ts";
import { openCallers } from "./callers.ts";
import { faultOf } from "./judge.ts";
import { Random } from "./random.ts";

const minutes = Number(process.env["KONTOR_ATTACK_MINUTES"] ?? 0);
const firstSeed = Number(process.env["KONTOR_ATTACK_SEED"] ?? 1);
const only = process.env["KONTOR_ATTACK_ONLY"];

const world = await openWorld();
const callers = await openCallers(world);
const operations = operationsOf(world.routes).filter(({ id }) => only === undefined || id === only);
const ids = new Set<string>();

/** Timeout of a request in milliseconds, so that a missing response does not stop the run. */
const givenUpMs = 10_000;
/**
 * CPU time in milliseconds. A request that exceeds it twice in a row is a finding in a long run; no ordinary request
 * comes near it.
 */
const maxCpuMs = 500;

interface Finding {
  operation: string;
  seed: number;
  attack: string;
  request: string;
  answer: string;
}

async function send({ method }: Operation, { path, token, payload, headers }: Attack) {
  const options = { token, headers: headers ?? {}, ...(payload === undefined ? {} : { payload }) };
  const before = process.cpuUsage();
  const late = Promise.withResolvers<undefined>();
  const timer = setTimeout(() => late.resolve(undefined), givenUpMs);
  const reply = await Promise.race([world.callRaw(method, path, options), late.promise]);
  clearTimeout(timer);
  const { user, system } = process.cpuUsage(before);
  return { reply, cpuMs: (user + system) / 1000 };
}

async function attack(operation: Operation, seed: number, sampled: number): Promise<Finding[]> {
  const known = cases[operation.id];
  // The setup of a call is expensive. A call without a body has no field to vary, and the contract tests cover it.
  const isMade = jsonBodyOf(operation) !== undefined || minutes > 0;
  const call = (isMade && (await known?.success(world))) || {};
  for (const id of Object.values(call.params ?? {})) ids.add(id);
  const random = new Random(seed, operation.id);
  const findings: Finding[] = [];
  for (const one of attacksOn({ world, callers, operation, known, call, ids, random, sampled })) {
    const { reply, cpuMs } = await send(operation, one);
    // An event stream has no response before it ends.
    if (reply === undefined && isStream(operation)) continue;
    const fault = reply === undefined ? "is missing" : wrongWith(operation, one, reply);
    const isDear = minutes > 0 && cpuMs > maxCpuMs && (await send(operation, one)).cpuMs > maxCpuMs;
    const what = fault ?? (isDear ? `took ${Math.round(cpuMs)} ms of CPU time` : undefined);
    // In a test, the host may be busy, so a missing response is not a finding.
    if (what === undefined || (reply === undefined && minutes === 0)) continue;
    findings.push({
      operation: operation.id,
      seed,
      attack: one.name,
      request: `${operation.method} ${one.path.slice(0, 200)} ${String(one.payload ?? "").slice(0, 300)}`,
      answer: `${what}: ${reply?.status} ${reply?.text.slice(0, 300)}`,
    });
  }
  return findings;
}

const isStream = ({ document }: Operation): boolean =>
  Object.values(document.responses).some(({ content }) => content?.["text/event-stream"]);

function wrongWith(operation: Operation, { expects }: Attack, reply: Reply): string | undefined {
  const fault = faultOf(operation, reply, minutes > 0);
  return fault ?? (expects?.(reply) === false ? "is not the one expected" : undefined);
}

describe.skipIf(minutes > 0)("a fixed seed", () => {
  test.each(operations)("$id withstands hostile requests", async (operation) => {
    expect(await attack(operation, firstSeed, 1)).toEqual([]);
  });
});

test.skipIf(minutes === 0)(
  "every operation withstands hostile requests for the given minutes",
  { timeout: (minutes + 10) * 60_000, retry: 0 },
  async () => {
    const end = Date.now() + minutes * 60_000;
    const found = new Map<string, Finding>();
    for (let seed = firstSeed; Date.now() < end; seed++) {
      for (const operation of operations) {
        if (Date.now() >= end) break;
        for (const finding of await attack(operation, seed, 6)) {
          const key = `${finding.operation} ${finding.answer.slice(0, 80)}`;
          if (found.has(key)) continue;
          found.set(key, finding);
          report(
            `✗ ${finding.operation}: ${finding.attack}\n    ${finding.request}\n    ${finding.answer}\n` +
              `    again: ./kontor attack --minutes 1 --seed ${seed} --only ${finding.operation}`,
          );
        }
      }
      const left = Math.max(0, Math.round((end - Date.now()) / 1000));
      report(`· seed ${seed} is through; ${found.size} findings so far, ${left} s to go`);
    }
    expect([...found.values()]).toEqual([]);
  },
);

/** Writes directly to stderr, because the reporter delays a test's output until its end. */
function report(line: string): void {
  writeSync(2, `${line}\n`);
}
