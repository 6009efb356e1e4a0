/**
 * Finds suggestions for "Did you mean …": the known word nearest to an unknown word, if a typing mistake explains the
 * difference.
 */

/**
 * Counts edits between two words; two swapped letters count as one. The quadratic table is small, because both words
 * are short.
 */
function editDistance(a: string, b: string): number {
  const rows = [Array.from({ length: b.length + 1 }, (_, column) => column)];
  for (let row = 1; row <= a.length; row++) {
    const current = [row];
    for (let column = 1; column <= b.length; column++) {
      const replaced = rows[row - 1]![column - 1]! + (a[row - 1] === b[column - 1] ? 0 : 1);
      const isSwap = row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1];
      const swapped = isSwap ? rows[row - 2]![column - 2]! + 1 : replaced;
      current.push(Math.min(replaced, swapped, rows[row - 1]![column]! + 1, current[column - 1]! + 1));
    }
    rows.push(current);
  }
  return rows[a.length]![b.length]!;
}

/**
 * Returns the only name that begins with the word, such as `timeout_seconds` for `timeout`, or else the nearest name.
 * Undefined if no name is within a third of the word's length, or the word is too long to be a name.
 */
export function nearest(word: string, known: readonly string[]): string | undefined {
  if (word.length > 64) return undefined;
  const [begun, ...others] = known.filter((name) => name.startsWith(`${word.toLowerCase()}_`));
  if (begun !== undefined && others.length === 0) return begun;
  const tolerance = (name: string) => Math.max(1, Math.floor(Math.max(name.length, word.length) / 3));
  const near = known
    // The difference in length is a cheap lower bound of the distance.
    .filter((name) => Math.abs(name.length - word.length) <= tolerance(name))
    .map((name) => ({ name, distance: editDistance(word.toLowerCase(), name.toLowerCase()) }))
    .filter(({ name, distance }) => distance <= tolerance(name))
    .toSorted((a, b) => a.distance - b.distance);
  return near[0]?.name;
}
