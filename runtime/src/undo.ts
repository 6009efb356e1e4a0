/**
 * An undo stack for work in several steps. Register each step's undo on the line before its effect, so that
 * an effect that happened in part is undone too. An undo must therefore succeed for an effect that never
 * happened.
 */

export type UndoStep = { name: string; undo: () => Promise<unknown> };

export class UndoStack {
  #steps: UndoStep[] = [];

  /** Registers an undo. Call this on the line before the effect. */
  add(name: string, undo: () => Promise<unknown>): void {
    this.#steps.push({ name, undo });
  }

  /** Ends the work: no undo runs any more. */
  commit(): void {
    this.#steps = [];
  }

  /** Runs every undo, the latest first, even if some fail. Returns the failures. */
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
