// Node's own `fetch`; its trust store is told by variable, as a sandbox tells it.
const { spawnSync } = require("node:child_process");
const bundle = process.env.NODE_EXTRA_CA_CERTS || "/etc/ssl/certs/ca-certificates.crt";
const script = `fetch("https://${process.argv[2]}/page").then((answer) => answer.json()).then((told) => {
  if (told.host !== "${process.argv[2]}") throw new Error(JSON.stringify(told));
  console.log("ok");
})`;
const ran = spawnSync(process.execPath, ["-e", script], { env: { ...process.env, NODE_EXTRA_CA_CERTS: bundle }, stdio: "inherit" });
process.exit(ran.status ?? 1);
