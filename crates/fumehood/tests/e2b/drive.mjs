// Drives one version of the E2B JavaScript SDK, in brief. As drive.py: one line of JSON for each check.

import { createRequire } from "node:module";

const require = createRequire(`${process.env.FUMEHOOD_TEST_MODULES}/`);
const { Sandbox } = require("e2b");
const checks = [];
const check = (name, body) => checks.push([name, body]);
const same = (found, wanted) => {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) {
    throw new Error(`${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`);
  }
};
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const until = async (body) => {
  for (const end = Date.now() + 20_000; Date.now() < end; await sleep(50)) {
    if (await body()) return;
  }
  throw new Error("it did not come");
};
const fails = async (body) => {
  try {
    await body();
  } catch (error) {
    return error;
  }
  throw new Error("nothing was thrown");
};

check("create, info, is_running", async (box) => {
  same((await box.getInfo()).metadata, { owner: "tests" });
  same(await box.isRunning(), true);
});
check("connect by id", async (box) => {
  const other = await Sandbox.connect(box.sandboxId);
  same((await other.commands.run("echo x")).stdout, "x\n");
});
check("set_timeout", (box) => box.setTimeout(600_000));
check("list by metadata, in pages", async (box) => {
  const pages = Sandbox.list({ query: { metadata: { owner: "tests" }, state: ["running"] }, limit: 100 });
  const found = (await pages.nextItems()).map((one) => one.sandboxId);
  same(found.includes(box.sandboxId), true);
});
check("kill; what is gone is gone", async () => {
  const one = await Sandbox.create({ timeoutMs: 60_000 });
  same(await one.kill(), true);
  same(await one.isRunning(), false);
  same(await Sandbox.kill(one.sandboxId), false);
});
check("metrics", async (box) => {
  same((await box.getMetrics())[0].memTotal > 0, true);
});
check("pause and resume keep processes and files", async () => {
  const one = await Sandbox.create({ timeoutMs: 120_000 });
  try {
    await one.files.write("/tmp/kept", "before");
    const pause = one.pause ?? one.betaPause;
    await pause.call(one);
    const again = await Sandbox.connect(one.sandboxId, { timeoutMs: 120_000 });
    same(await again.files.read("/tmp/kept"), "before");
  } finally {
    await one.kill();
  }
});
check("a command, its output and its end", async (box) => {
  const run = await box.commands.run("echo out; echo err >&2");
  same([run.stdout, run.stderr, run.exitCode], ["out\n", "err\n", 0]);
  same((await fails(() => box.commands.run("exit 7"))).exitCode, 7);
});
check("output as it comes", async (box) => {
  let seen = "";
  await box.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done", { onStdout: (text) => void (seen += text) });
  same(seen, "1\n2\n3\n");
});
check("variables, folder, unicode", async (box) => {
  const run = await box.commands.run('printf "%s|%s|ä☃😀" "$NAME" "$PWD"', { envs: { NAME: "välue" }, cwd: "/tmp" });
  same(run.stdout, "välue|/tmp|ä☃😀");
});
check("in the background: input, end of input", async (box) => {
  const run = await box.commands.run("cat; echo done", { background: true, stdin: true });
  await box.commands.sendStdin(run.pid, "héllo\n");
  if (!box.commands.closeStdin) {
    await run.kill();
    return "closeStdin";
  }
  await box.commands.closeStdin(run.pid);
  same((await run.wait()).stdout, "héllo\ndone\n");
});
check("list, kill", async (box) => {
  const run = await box.commands.run("sleep 300", { background: true });
  same((await box.commands.list()).some((one) => one.pid === run.pid), true);
  same(await run.kill(), true);
  await fails(() => run.wait());
  same(await box.commands.kill(run.pid), false);
});
check("reconnect by pid; a client that leaves ends nothing", async (box) => {
  const run = await box.commands.run("for i in $(seq 20); do echo $i; sleep 0.1; done", { background: true });
  await run.disconnect();
  const again = await box.commands.connect(run.pid);
  same((await again.wait()).exitCode, 0);
});
check("a command's time", async (box) => {
  same((await fails(() => box.commands.run("sleep 60", { timeoutMs: 1000 }))).name, "TimeoutError");
});
check("terminal: create, size, input, kill", async (box) => {
  let seen = "";
  const onData = (data) => void (seen += new TextDecoder().decode(data));
  const term = await box.pty.create({ rows: 30, cols: 100, onData, timeoutMs: 0 });
  await box.pty.sendInput(term.pid, new TextEncoder().encode("stty size\n"));
  await until(() => seen.includes("30 100"));
  await box.pty.resize(term.pid, { rows: 40, cols: 132 });
  await box.pty.sendInput(term.pid, new TextEncoder().encode("stty size\n"));
  await until(() => seen.includes("40 132"));
  same(await box.pty.kill(term.pid), true);
});
check("write and read: text, bytes, unicode names, empty", async (box) => {
  const every = new Uint8Array(4096).map((_, place) => place);
  await box.files.write("a ☃.txt", "hällo");
  same(await box.files.read("a ☃.txt"), "hällo");
  await box.files.write("/tmp/bytes", every.buffer);
  same([...(await box.files.read("/tmp/bytes", { format: "bytes" }))], [...every]);
  await box.files.write("/tmp/none", "");
  same(await box.files.read("/tmp/none"), "");
});
check("several files in one call", async (box) => {
  await box.files.write([
    { path: "/tmp/many/a", data: "1" },
    { path: "/tmp/many/b", data: "2" },
  ]);
  same([await box.files.read("/tmp/many/a"), await box.files.read("/tmp/many/b")], ["1", "2"]);
});
check("exists, info, list, folders, rename, remove", async (box) => {
  same(await box.files.makeDir("tree/deep"), true);
  same(await box.files.makeDir("tree/deep"), false);
  await box.files.write("tree/deep/file", "12345");
  same((await box.files.list("tree")).map((entry) => entry.name), ["deep"]);
  same((await box.files.getInfo("tree/deep/file")).size, 5);
  await box.files.rename("tree/deep/file", "tree/moved");
  same(await box.files.exists("tree/moved"), true);
  await box.files.remove("tree");
  same(await box.files.exists("tree"), false);
});
check("watch", async (box) => {
  await box.files.makeDir("seen");
  const names = [];
  const watch = await box.files.watchDir("seen", (event) => void names.push(event.name));
  await box.files.write("seen/new.txt", "x");
  await until(() => names.includes("new.txt"));
  await watch.stop();
});
check("signed URLs", async (box) => {
  await box.files.write("/tmp/signed.txt", "signed");
  const url = await box.downloadUrl("/tmp/signed.txt", { useSignatureExpiration: 60 });
  same(await (await fetch(url)).text(), "signed");
  same((await fetch(url.replace("signed.txt", "other.txt"))).ok, false);
});
check("a wrong key, a wrong token, another user", async (box) => {
  const error = await fails(() => Sandbox.create({ apiKey: `e2b_${"0".repeat(40)}` }));
  same(error.name, "AuthenticationError");
  same(String(await fails(() => box.commands.run("id", { user: "root" }))).includes("root"), true);
});

const box = await Sandbox.create({ timeoutMs: 300_000, metadata: { owner: "tests" } });
let failed = false;
try {
  for (const [name, body] of checks) {
    const began = Date.now();
    const line = { check: name, result: "passes" };
    try {
      const absent = await body(box);
      if (typeof absent === "string") Object.assign(line, { result: "absent", why: absent });
    } catch (error) {
      failed = true;
      Object.assign(line, { result: "fails", why: String(error).slice(0, 600), trace: String(error?.stack).slice(0, 1500) });
    }
    console.log(JSON.stringify({ ...line, ms: Date.now() - began }));
  }
} finally {
  await box.kill();
}
process.exit(failed ? 1 : 0);
