/** Name of an add-on's volume, derived from the add-on's id. */
export function volumeOf({ id }: { id: string }): string {
  return `addon_${id.replaceAll("-", "")}`;
}
