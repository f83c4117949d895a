// Drives one version of the E2B JavaScript SDK through what it publishes. As drive.py: one line of JSON for each check,
// under the same names.

import { createRequire } from "node:module";
import { request } from "node:http";

const require = createRequire(`${process.env.FUMEHOOD_TEST_MODULES}/`);
const optional = (name) => {
  try {
    return require(name);
  } catch (error) {
    if (error.code === "MODULE_NOT_FOUND") return undefined;
    throw error;
  }
};
// The code interpreter's package brings the other one with it.
const { Sandbox } = optional("e2b") ?? require("@e2b/code-interpreter");
const Interpreter = optional("@e2b/code-interpreter")?.Sandbox;
const BIG = Number(process.env.FUMEHOOD_TEST_BIG ?? 100 * 1024 * 1024);
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
/** A sandbox of its own, gone at the end. */
const within = async (options, body) => {
  const one = await Sandbox.create(options);
  try {
    return await body(one);
  } finally {
    await one.kill();
  }
};
/** A page, with whatever `Host` it takes: `fetch` would put in its own. */
const page = (headers, path = "/page?q=1") =>
  new Promise((done, failed) => {
    const url = new URL(path, process.env.E2B_SANDBOX_URL);
    request(url, { headers }, (answer) => {
      let text = "";
      answer.setEncoding("utf8").on("data", (part) => (text += part)).on("end", () => done({ status: answer.statusCode, text }));
    })
      .on("error", failed)
      .end();
  });

check("create, info, is_running", async (box) => {
  same((await box.getInfo()).metadata, { owner: "tests" });
  same(await box.isRunning(), true);
});
check("connect by id", async (box) => {
  const other = await Sandbox.connect(box.sandboxId);
  same((await other.commands.run("echo x")).stdout, "x\n");
});
check("set_timeout", async (box) => {
  await box.setTimeout(600_000);
  const left = (await box.getInfo()).endAt.getTime() - Date.now();
  same(left > 500_000 && left < 700_000, true);
});
check("list by metadata, in pages", async (box) => {
  const metadata = { page: box.sandboxId };
  const boxes = await Promise.all([1, 2, 3].map(() => Sandbox.create({ timeoutMs: 120_000, metadata })));
  try {
    const pages = Sandbox.list({ query: { metadata, state: ["running"] }, limit: 2 });
    const first = await pages.nextItems();
    same([first.length, pages.hasNext], [2, true]);
    const second = await pages.nextItems();
    same([second.length, pages.hasNext], [1, false]);
    const ids = (list) => list.map((one) => one.sandboxId).sort();
    same(ids([...first, ...second]), ids(boxes));
  } finally {
    await Promise.all(boxes.map((one) => one.kill()));
  }
});
check("kill; what is gone is gone", async () => {
  const one = await Sandbox.create({ timeoutMs: 60_000 });
  same(await one.kill(), true);
  same(await one.isRunning(), false);
  same(await Sandbox.kill(one.sandboxId), false);
  same((await fails(() => Sandbox.connect(one.sandboxId))).name.includes("NotFound"), true);
  await fails(() => one.commands.run("true"));
});
check("its time ends it", async () => {
  const one = await Sandbox.create({ timeoutMs: 2000 });
  await until(async () => !(await one.isRunning()));
});
check("metrics", async (box) => {
  same((await box.getMetrics())[0].memTotal > 0, true);
});
check("pause and resume keep processes and files", () =>
  within({ timeoutMs: 120_000 }, async (one) => {
    await one.files.write("/tmp/kept", "before");
    const run = await one.commands.run("sleep 300", { background: true, timeoutMs: 0 });
    const pause = () => (one.pause ?? one.betaPause).call(one);
    await pause();
    const paused = await Sandbox.list({ query: { state: ["paused"] }, limit: 100 }).nextItems();
    same(paused.some((found) => found.sandboxId === one.sandboxId), true);
    same(await one.isRunning(), false);
    const again = await Sandbox.connect(one.sandboxId, { timeoutMs: 120_000 });
    same(await again.files.read("/tmp/kept"), "before");
    same((await again.commands.list()).some((found) => found.pid === run.pid), true);
    await again.files.write("/tmp/second", "after");
    await pause();
    const last = await Sandbox.connect(one.sandboxId, { timeoutMs: 120_000 });
    same(await last.files.read("/tmp/second"), "after");
  }));
check("pause at its end, and the end stays a pause", () =>
  within({ timeoutMs: 3000, lifecycle: { onTimeout: "pause" } }, async (one) => {
    const state = async () => (await one.getInfo()).state;
    await until(async () => (await state()) === "paused");
    await Sandbox.connect(one.sandboxId, { timeoutMs: 3000 });
    same(await state(), "running");
    await until(async () => (await state()) === "paused");
  }));
check("what is paused wakes by a call, if it was made so", () =>
  within({ timeoutMs: 60_000, lifecycle: { onTimeout: "pause", autoResume: true } }, async (one) => {
    await one.files.write("/tmp/kept", "here");
    await (one.pause ?? one.betaPause).call(one);
    same((await one.commands.run("cat /tmp/kept")).stdout, "here");
  }));
check("snapshot, and a sandbox of it", async (box) => {
  if (!box.createSnapshot) return "createSnapshot";
  await box.files.write("snap/note.txt", "kept");
  const taken = await box.createSnapshot();
  await (async () => {
    const one = await Sandbox.create(taken.snapshotId, { timeoutMs: 60_000 });
    try {
      same(await one.files.read("snap/note.txt"), "kept");
      await one.files.write("snap/note.txt", "changed");
      same(await box.files.read("snap/note.txt"), "kept");
    } finally {
      await one.kill();
    }
  })();
  const listed = async () => (await box.listSnapshots().nextItems()).map((one) => one.snapshotId);
  same((await listed()).includes(taken.snapshotId), true);
  same(await Sandbox.deleteSnapshot(taken.snapshotId), true);
  same(await Sandbox.deleteSnapshot(taken.snapshotId), false);
  same((await listed()).includes(taken.snapshotId), false);
});
check("fork", async (box) => {
  if (!box.fork) return "fork";
  await box.files.write("fork.txt", "parent");
  const children = await box.fork({ count: 2 });
  try {
    same(children.length, 2);
    for (const child of children) {
      same(await child.files.read("fork.txt"), "parent");
      await child.files.write("fork.txt", "child");
    }
    same(await box.files.read("fork.txt"), "parent");
  } finally {
    await Promise.all(children.map((child) => child.kill()));
  }
});
check("a command, its output and its end", async (box) => {
  const run = await box.commands.run("echo out; echo err >&2");
  same([run.stdout, run.stderr, run.exitCode], ["out\n", "err\n", 0]);
  const error = await fails(() => box.commands.run("echo x; exit 7"));
  same([error.exitCode, error.stdout], [7, "x\n"]);
});
check("output as it comes", async (box) => {
  const seen = [];
  const onStdout = (text) => void seen.push([Date.now(), text]);
  await box.commands.run("for i in 1 2 3; do echo $i; sleep 0.2; done", { onStdout });
  same(seen.map(([, text]) => text).join(""), "1\n2\n3\n");
  same(seen.at(-1)[0] - seen[0][0] > 200, true);
});
check("variables, folder, unicode", async (box) => {
  const run = await box.commands.run('printf "%s|%s|ä☃😀" "$NAME" "$PWD"', { envs: { NAME: "välue $x" }, cwd: "/tmp" });
  same(run.stdout, "välue $x|/tmp|ä☃😀");
  same((await box.commands.run("echo $OF_ALL")).stdout, "from create\n");
});
check("much output", async (box) => {
  const run = await box.commands.run("head -c 20000000 /dev/zero | tr '\\0' a; echo end >&2");
  same([run.stdout.length, run.stderr], [20_000_000, "end\n"]);
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
check("without input a command sees its end at once", async (box) => {
  same((await box.commands.run("cat; echo done", { timeoutMs: 20_000 })).stdout, "done\n");
});
check("many commands at once", async (box) => {
  const runs = [...Array(20).keys()].map((place) => box.commands.run(`sleep 0.2; echo ${place}`));
  same((await Promise.all(runs)).map((run) => run.stdout.trim()), [...Array(20).keys()].map(String));
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
  const ended = await again.wait();
  same([ended.exitCode, ended.stdout.endsWith("20\n")], [0, true]);
  same((await fails(() => box.commands.connect(999_999))).name.includes("NotFound"), true);
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
check("terminal: left, and found again", async (box) => {
  if (!box.pty.connect) return "pty.connect";
  const term = await box.pty.create({ rows: 24, cols: 80, onData: () => {}, timeoutMs: 0 });
  await term.disconnect();
  let seen = "";
  const onData = (data) => void (seen += new TextDecoder().decode(data));
  const again = await box.pty.connect(term.pid, { onData, timeoutMs: 0 });
  await box.pty.sendInput(term.pid, new TextEncoder().encode("echo is''there\n"));
  await until(() => seen.includes("isthere"));
  same(await again.kill(), true);
});
check("write and read: text, bytes, unicode names, empty", async (box) => {
  const every = new Uint8Array(4096).map((_, place) => place);
  await box.files.write("a ☃.txt", "hällo");
  same(await box.files.read("a ☃.txt"), "hällo");
  await box.files.write("/tmp/bytes", every.buffer);
  same([...(await box.files.read("/tmp/bytes", { format: "bytes" }))], [...every]);
  await box.files.write("/tmp/none", "");
  same(await box.files.read("/tmp/none"), "");
  await box.files.write('/tmp/"q" %22 ä.txt', new Blob(["q"]));
  same(await (await box.files.read('/tmp/"q" %22 ä.txt', { format: "blob" })).text(), "q");
  same((await fails(() => box.files.read("/tmp/not/there"))).name.includes("NotFound"), true);
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
  await box.commands.run("ln -s deep/file tree/link; chmod 640 tree/deep/file");
  same([await box.files.exists("tree/deep/file"), await box.files.exists("tree/none")], [true, false]);
  const info = await box.files.getInfo("tree/deep/file");
  same([info.name, info.size, info.mode, info.permissions], ["file", 5, 0o640, "-rw-r-----"]);
  const names = async (depth) => (await box.files.list("tree", { depth })).map((entry) => entry.name).sort();
  same(await names(1), ["deep", "link"]);
  same(await names(2), ["deep", "file", "link"]);
  await box.files.rename("tree/deep/file", "tree/moved");
  same(await box.files.read("tree/moved"), "12345");
  await box.files.remove("tree");
  same(await box.files.exists("tree"), false);
  same((await fails(() => box.files.list("tree"))).name.includes("NotFound"), true);
});
check("watch", async (box) => {
  await box.files.makeDir("seen/below");
  const events = [];
  const watch = await box.files.watchDir("seen", (event) => void events.push(`${event.type} ${event.name}`), { recursive: true });
  await box.files.write("seen/below/new.txt", "x");
  await until(() => events.some((event) => event.includes("new.txt")));
  await box.files.remove("seen/below/new.txt");
  await until(() => events.some((event) => event.startsWith("remove") && event.includes("new.txt")));
  await watch.stop();
});
check("a big file, both ways", async (box) => {
  const data = new Uint8Array(BIG);
  for (let place = 0; place < BIG; place += 4093) data[place] = place % 251;
  await box.files.write("/tmp/big", data.buffer);
  same((await box.commands.run("stat -c %s /tmp/big")).stdout.trim(), String(BIG));
  same(Buffer.compare(await box.files.read("/tmp/big", { format: "bytes" }), data), 0);
  let total = 0;
  for await (const part of await box.files.read("/tmp/big", { format: "stream" })) total += part.length;
  same(total, BIG);
  await box.files.remove("/tmp/big");
});
check("signed URLs", async (box) => {
  await box.files.write("/tmp/signed.txt", "signed");
  const url = await box.downloadUrl("/tmp/signed.txt", { useSignatureExpiration: 60 });
  same(await (await fetch(url)).text(), "signed");
  same((await fetch(url.replace("signed.txt", "other.txt"))).ok, false);
  same((await fetch(url.replace("signature=v1_", "signature=v1_x"))).ok, false);
  const form = new FormData();
  form.append("file", new Blob(["sent"]), "/tmp/sent.txt");
  const to = await box.uploadUrl("/tmp/sent.txt", { useSignatureExpiration: 60 });
  same((await fetch(to, { method: "POST", body: form })).ok, true);
  same(await box.files.read("/tmp/sent.txt"), "sent");
});
check("a wrong key, a wrong token, another user", async (box) => {
  const error = await fails(() => Sandbox.create({ apiKey: `e2b_${"0".repeat(40)}` }));
  same(error.name, "AuthenticationError");
  same(String(await fails(() => box.commands.run("id", { user: "root" }))).includes("root"), true);
});

check("network: none unless named, what can not be done is refused", () =>
  within({ timeoutMs: 60_000, network: { denyOut: ["0.0.0.0/0"], allowOut: ["pinned.example.com"] } }, async (one) => {
    const line = "getent hosts pinned.example.com >/dev/null && echo named; getent hosts other.example.com >/dev/null || echo unnamed";
    same((await one.commands.run(line)).stdout, "named\nunnamed\n");
    const refused = async (network) => String(await fails(() => Sandbox.create({ network })));
    same((await refused({ denyOut: ["192.0.2.0/24"] })).includes("only allow"), true);
  }));
check("network: changed while it lives, headers put in", async () => {
  const transform = { headers: { "X-Key": "a-literal-value" } };
  const rules = { "api.example.com": [{ transform }] };
  return await within({ timeoutMs: 60_000, network: { allowOut: ["first.example.com"], rules } }, async (one) => {
    if (!one.updateNetwork) return "updateNetwork";
    const line = "for n in first second api; do getent hosts $n.example.com >/dev/null && echo $n; done; true";
    const named = async () => (await one.commands.run(line)).stdout.split("\n").filter(Boolean);
    same(await named(), ["first", "api"]);
    same(JSON.stringify(await one.getInfo()).includes("a-literal-value"), false);
    await one.updateNetwork({ allowOut: ["second.example.com"] });
    same(await named(), ["second"]);
    await one.updateNetwork({ rules });
    same(await named(), ["api"]);
    await one.updateNetwork({ denyOut: ["0.0.0.0/0"] });
    same(await named(), []);
    same(String(await fails(() => one.updateNetwork({ allowOut: ["169.254.169.254"] }))).includes("operator"), true);
  });
});
check("ports: closed, open, with a token", async (box) => {
  const of = (port, token) => ({
    "E2b-Sandbox-Id": box.sandboxId,
    "E2b-Sandbox-Port": String(port),
    ...(token && { "E2B-Traffic-Access-Token": token }),
  });
  const token = box.trafficAccessToken;
  same((await page(of(8124, token))).text.includes("port is not open"), true);
  const line = "mkdir -p /tmp/www && echo hello > /tmp/www/page && cd /tmp/www && exec python3 -m http.server 8124 --bind 127.0.0.1";
  const server = await box.commands.run(line, { background: true, timeoutMs: 0 });
  await until(async () => (await page(of(8124, token))).text === "hello\n");
  same((await page(of(8124))).status, 401);
  const host = box.getHost(8124);
  same(host.startsWith(`8124-${box.sandboxId}.`), true);
  same((await page({ Host: host, "E2B-Traffic-Access-Token": token })).text, "hello\n");
  await server.kill();
});
check("the asynchronous client", async () => "all of it is");
check("code: state between cells, results, output, errors", async () => {
  if (!Interpreter) return "no @e2b/code-interpreter";
  const one = await Interpreter.create({ timeoutMs: 120_000 });
  try {
    await one.runCode("import math\nx = 20");
    const run = await one.runCode("print('out'); x + 1");
    same([run.text, run.logs.stdout.join("")], ["21", "out\n"]);
    same((await one.runCode("1/0")).error.name, "ZeroDivisionError");
    same((await one.runCode("x")).text, "20");
    same((await one.runCode("import os; os.environ['SET']", { envs: { SET: "here" } })).text, "'here'");
    let seen = "";
    await one.runCode("for i in range(3): print(i, flush=True)", { onStdout: (line) => void (seen += line.line) });
    same(seen, "0\n1\n2\n");
  } finally {
    await one.kill();
  }
});
check("code: contexts, restart, time", async () => {
  if (!Interpreter) return "no @e2b/code-interpreter";
  const one = await Interpreter.create({ timeoutMs: 120_000 });
  try {
    const context = await one.createCodeContext({ cwd: "/tmp" });
    await one.runCode("y = 1", { context });
    same((await one.runCode("y", { context })).text, "1");
    same((await one.runCode("y")).error.name, "NameError");
    same((await one.runCode("import os; os.getcwd()", { context })).text, "'/tmp'");
    const ids = async () => (await one.listCodeContexts()).map((found) => found.id);
    same((await ids()).includes(context.id), true);
    await one.restartCodeContext(context);
    same((await one.runCode("y", { context })).error.name, "NameError");
    same((await fails(() => one.runCode("while True: pass", { context, timeoutMs: 2000 }))).name, "TimeoutError");
    same((await one.runCode("1 + 1", { context })).text, "2");
    await one.removeCodeContext(context);
    same((await ids()).includes(context.id), false);
  } finally {
    await one.kill();
  }
});

const only = process.argv.slice(2);
const box = await Sandbox.create({ timeoutMs: 300_000, metadata: { owner: "tests" }, envs: { OF_ALL: "from create" } });
let failed = false;
try {
  for (const [name, body] of checks) {
    if (only.length && !only.some((part) => name.includes(part))) continue;
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
