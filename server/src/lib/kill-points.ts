/**
 * Named points in work that must survive the end of the process. In production they have no listener. A test ends or
 * halts the server at such a point, and checks how the next server continues.
 */
type Listener = (point: string) => Promise<void>;

let listener: Listener | undefined;

export async function passKillPoint(point: string): Promise<void> {
  await listener?.(point);
}

/** Sets the only listener of the process; undefined removes it. */
export function onKillPoint(next: Listener | undefined): void {
  listener = next;
}
