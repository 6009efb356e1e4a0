/** Validation of external values before they become arguments of git. */

/**
 * True for a valid branch name: the part after `refs/heads/` in git-check-ref-format(1). Such a name begins with no
 * dash, so it is never an option.
 */
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

/** True for a whole commit id, SHA-1 or SHA-256. */
export function isCommitId(text: string): boolean {
  return /^(?:[0-9a-f]{40}|[0-9a-f]{64})$/.test(text);
}
