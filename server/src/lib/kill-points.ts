/**
 * Named points in the work that must survive the end of the process. In production nothing listens; a test makes the
 * server end, or stand still, at one of them, and looks at what the next server makes of what it left.
 */
type Listener = (point: string) => Promise<void>;

let listener: Listener | undefined;

export async function reached(point: string): Promise<void> {
  await listener?.(point);
}

/** One listener for the process; undefined takes it away. */
export function onKillPoint(next: Listener | undefined): void {
  listener = next;
}
