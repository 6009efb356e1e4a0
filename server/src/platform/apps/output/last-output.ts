/** Makes the error for an app that does not serve, with the app's last output. */
import type { AppsContext } from "../apps-context.ts";
import { AppUnhealthy } from "../errors.ts";
import type { Running } from "../running/app-instance.ts";

const shown = { lines: 200, characters: 32 * 1024 };

/** Returns the error. `why` is a sentence. */
export async function unhealthyError(
  apps: AppsContext,
  running: Running,
  why: string,
  options?: ErrorOptions,
): Promise<AppUnhealthy> {
  const { lines } = await apps.ring(running.environmentId).tail(shown.lines * 10);
  const own = lines.filter(
    ({ deployment, stream }) => deployment === running.row.deployment_id && stream !== "system",
  );
  const lastText = own
    .slice(-shown.lines)
    .map(({ text }) => text)
    .join("\n")
    .slice(-shown.characters);
  const last = lastText === "" ? "It wrote nothing." : `Last output:\n${lastText}`;
  return new AppUnhealthy(`${why} ${last}`, options);
}
