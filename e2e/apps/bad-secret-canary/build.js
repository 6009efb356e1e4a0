console.log(`the build sees ${process.env.CANARY === undefined ? "nothing" : "it"}`);
console.log(`and says it: ${process.env.CANARY}`);
