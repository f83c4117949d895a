// A WebSocket client: one message there and back.
const WebSocket = require("ws");
const ca = require("node:fs").readFileSync(process.env.NODE_EXTRA_CA_CERTS || "/etc/ssl/certs/ca-certificates.crt");
const socket = new WebSocket(`wss://${process.argv[2]}/socket`, { ca });
socket.on("open", () => socket.send("a message of websocket.js"));
socket.on("message", (data) => {
  if (String(data) !== "a message of websocket.js") throw new Error(String(data));
  console.log("ok");
  socket.close();
});
