/**
 * An undo stack for work in several steps. Each step's undo is registered on the line before its effect, so that an
 * effect that happened half is undone too; undos must therefore bear being run for something that never happened.
 */

export type UndoStep = { name: string; undo: () => Promise<unknown> };

export class UndoStack {
  #steps: UndoStep[] = [];

  /** To be called on the line before the effect. */
  add(name: string, undo: () => Promise<unknown>): void {
    this.#steps.push({ name, undo });
  }

  /** The work is done: nothing is to be undone any more. */
  commit(): void {
    this.#steps = [];
  }

  /** Runs every undo, the latest first, even when some fail; answers the failures. */
  async unwind(): Promise<{ name: string; error: unknown }[]> {
    const failures: { name: string; error: unknown }[] = [];
    for (const { name, undo } of this.#steps.splice(0).toReversed()) {
      try {
        await undo();
      } catch (error) {
        failures.push({ name, error });
      }
    }
    return failures;
  }
}
