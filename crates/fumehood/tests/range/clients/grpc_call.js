// A gRPC client: one call.
const grpc = require("@grpc/grpc-js");
const ca = require("node:fs").readFileSync(process.env.NODE_EXTRA_CA_CERTS || "/etc/ssl/certs/ca-certificates.crt");
const same = { requestSerialize: (data) => data, responseDeserialize: (data) => data };
const Echo = grpc.makeGenericClientConstructor({
  Say: { path: "/range.Echo/Say", requestStream: false, responseStream: false, ...same },
}, "Echo");
const client = new Echo(`${process.argv[2]}:443`, grpc.credentials.createSsl(ca));
client.Say(Buffer.from("a message"), { deadline: Date.now() + 10000 }, (problem, data) => {
  if (problem) throw problem;
  if (String(data) !== "a message") throw new Error(String(data));
  console.log("ok");
  client.close();
});
