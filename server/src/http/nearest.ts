/** "Did you mean …": the known word nearest to an unknown one, if it is near enough to be a slip of the hand. */

/** Levenshtein distance; both words are short names, so the quadratic table is small. */
function editDistance(a: string, b: string): number {
  let previous = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let row = 1; row <= a.length; row++) {
    const current = [row];
    for (let column = 1; column <= b.length; column++) {
      const replaced = previous[column - 1]! + (a[row - 1] === b[column - 1] ? 0 : 1);
      current.push(Math.min(replaced, previous[column]! + 1, current[column - 1]! + 1));
    }
    previous = current;
  }
  return previous[b.length]!;
}

/** Undefined where nothing is within a third of the word's length, or the word is too long to be a name. */
export function nearest(word: string, known: readonly string[]): string | undefined {
  if (word.length > 64) return undefined;
  const near = known
    .map((name) => ({ name, distance: editDistance(word.toLowerCase(), name.toLowerCase()) }))
    .filter(
      ({ name, distance }) => distance <= Math.max(1, Math.floor(Math.max(name.length, word.length) / 3)),
    )
    .toSorted((a, b) => a.distance - b.distance);
  return near[0]?.name;
}
