console.log("listening to nobody");
setInterval(() => {}, 1000);
