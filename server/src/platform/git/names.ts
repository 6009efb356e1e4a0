/** Validation of external values before they become arguments of git. */

/**
 * git-check-ref-format(1), for the part after `refs/heads/`. A valid name begins with no dash, so it is never an
 * option.
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

/** A whole commit id, SHA-1 or SHA-256. */
export function isCommitId(text: string): boolean {
  return /^(?:[0-9a-f]{40}|[0-9a-f]{64})$/.test(text);
}
