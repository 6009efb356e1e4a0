/** Documented limits. */
export const webhooksMax = 10;
export const answerWithinMs = 10_000;
export const attemptsMax = 3;
export const attemptsApartMs = 10_000;
export const failuresMax = 20;
