/** Returns the name of an add-on's volume, which contains the add-on's id. */
export function volumeOf({ id }: { id: string }): string {
  return `addon_${id.replaceAll("-", "")}`;
}
