/** Words that come from outside and stand in git's arguments: what is not shaped like this never gets there. */

/** git-check-ref-format(1), for the part behind `refs/heads/`; never an option, for it begins with no dash. */
export function isBranchName(text: string): boolean {
  return (
    text.length > 0 &&
    text.length <= 200 &&
    !text.startsWith("-") &&
    text !== "@" &&
    text !== "HEAD" &&
    // oxlint-disable-next-line no-control-regex -- git forbids control characters
    !/[\u0000-\u0020\u007f~^:?*[\\]|\.\.|@\{/.test(text) &&
    text.split("/").every((part) => part !== "" && !/^\.|\.$|\.lock$/.test(part))
  );
}

/** A whole commit id, SHA-1 or SHA-256. */
export function isCommitId(text: string): boolean {
  return /^(?:[0-9a-f]{40}|[0-9a-f]{64})$/.test(text);
}
