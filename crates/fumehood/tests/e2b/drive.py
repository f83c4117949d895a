"""Drives one version of the E2B Python SDK through what it publishes, against a server that the environment names.

A line of JSON for each check: its name, and what went wrong if something did. No check is left out: one that a
version has no call for is told as "absent".
"""

import asyncio
import json
import os
import sys
import threading
import time
import traceback
import urllib.request

import e2b
from e2b import Sandbox

CHECKS = []
BIG = int(os.environ.get("FUMEHOOD_TEST_BIG", str(100 * 1024 * 1024)))


class Absent(Exception):
    """This version has no such call."""


def check(name):
    def add(body):
        CHECKS.append((name, body))
        return body

    return add


def need(owner, name):
    if not hasattr(owner, name):
        raise Absent(name)
    return getattr(owner, name)


def fails(kind, body):
    try:
        body()
    except kind as error:
        return error
    raise AssertionError(f"no {kind} was raised")


def until(body, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = body()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come")


# --- the life of a sandbox ---


@check("create, info, is_running")
def _(box):
    info = box.get_info()
    assert info.sandbox_id == box.sandbox_id
    assert info.metadata == {"owner": "tests", "no te": "ä&="}, info.metadata
    assert box.is_running()
    assert str(info.state).endswith(("running", "RUNNING")), info.state


@check("connect by id")
def _(box):
    other = Sandbox.connect(box.sandbox_id)
    assert other.commands.run("echo $0").exit_code == 0


@check("set_timeout")
def _(box):
    box.set_timeout(600)
    left = box.get_info().end_at.timestamp() - time.time()
    assert 500 < left < 700, left


@check("list by metadata, in pages")
def _(box):
    marks = {"page": box.sandbox_id}
    boxes = [Sandbox.create(timeout=120, metadata=marks) for _ in range(3)]
    try:
        pages = Sandbox.list(query=e2b.SandboxQuery(metadata=marks), limit=2)
        first = pages.next_items()
        assert len(first) == 2 and pages.has_next, first
        second = pages.next_items()
        assert len(second) == 1 and not pages.has_next
        assert {one.sandbox_id for one in first + second} == {one.sandbox_id for one in boxes}
    finally:
        for one in boxes:
            one.kill()


@check("kill; what is gone is gone")
def _(box):
    one = Sandbox.create(timeout=60)
    assert one.kill() is True
    assert one.is_running() is False
    assert Sandbox.kill(one.sandbox_id) is False
    fails(e2b.NotFoundException, lambda: Sandbox.connect(one.sandbox_id))
    fails(Exception, lambda: one.commands.run("true"))


@check("its time ends it")
def _(box):
    one = Sandbox.create(timeout=2)
    until(lambda: not one.is_running())


@check("metrics")
def _(box):
    found = until(lambda: box.get_metrics())
    assert found[0].mem_total > 0 and found[0].cpu_count >= 1, found


@check("pause and resume keep processes and files")
def _(box):
    one = Sandbox.create(timeout=120)
    try:
        one.files.write("/tmp/kept", "before")
        run = one.commands.run("sleep 300", background=True, timeout=0)
        pause = getattr(one, "pause", None) or getattr(one, "beta_pause")
        pause()
        states = [str(box.state) for box in Sandbox.list(query=e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED])).next_items() if box.sandbox_id == one.sandbox_id]
        assert len(states) == 1, states
        assert not one.is_running()
        again = Sandbox.connect(one.sandbox_id, timeout=120)
        assert again.is_running()
        assert again.files.read("/tmp/kept") == "before"
        assert run.pid in [found.pid for found in again.commands.list()]
        # Written after the first resume, there after the second.
        again.files.write("/tmp/second", "after")
        pause()
        assert Sandbox.connect(one.sandbox_id, timeout=120).files.read("/tmp/second") == "after"
    finally:
        one.kill()


@check("pause at its end, and the end stays a pause")
def _(box):
    try:
        one = Sandbox.create(timeout=3, lifecycle={"on_timeout": "pause"})
    except TypeError as error:
        raise Absent(str(error))
    try:
        info = lambda: str(one.get_info().state).lower()
        until(lambda: "paused" in info())
        Sandbox.connect(one.sandbox_id, timeout=3)
        assert "running" in info()
        until(lambda: "paused" in info())
    finally:
        one.kill()


@check("what is paused wakes by a call, if it was made so")
def _(box):
    try:
        one = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
    except TypeError as error:
        raise Absent(str(error))
    try:
        one.files.write("/tmp/kept", "here")
        (getattr(one, "pause", None) or one.beta_pause)()
        assert one.commands.run("cat /tmp/kept").stdout == "here"
    finally:
        one.kill()


@check("snapshot, and a sandbox of it")
def _(box):
    take = need(box, "create_snapshot")
    box.files.write("snap/note.txt", "kept")
    taken = take()
    one = Sandbox.create(taken.snapshot_id, timeout=60)
    try:
        assert one.files.read("snap/note.txt") == "kept"
        one.files.write("snap/note.txt", "changed")
        assert box.files.read("snap/note.txt") == "kept"
    finally:
        one.kill()
    listed = lambda: [one.snapshot_id for one in box.list_snapshots().next_items()]
    assert taken.snapshot_id in listed()
    assert Sandbox.delete_snapshot(taken.snapshot_id) is True
    assert Sandbox.delete_snapshot(taken.snapshot_id) is False
    assert taken.snapshot_id not in listed()


@check("fork")
def _(box):
    fork = need(box, "fork")
    box.files.write("fork.txt", "parent")
    children = fork(count=2)
    try:
        assert len(children) == 2
        for child in children:
            one = getattr(child, "sandbox", child)
            assert one.files.read("fork.txt") == "parent"
            one.files.write("fork.txt", "child")
        assert box.files.read("fork.txt") == "parent"
    finally:
        for child in children:
            getattr(child, "sandbox", child).kill()


# --- commands ---


@check("a command, its output and its end")
def _(box):
    run = box.commands.run("echo out; echo err >&2")
    assert (run.stdout, run.stderr, run.exit_code) == ("out\n", "err\n", 0)
    error = fails(e2b.CommandExitException, lambda: box.commands.run("echo x; exit 7"))
    assert (error.exit_code, error.stdout) == (7, "x\n")


@check("output as it comes")
def _(box):
    seen = []
    box.commands.run("for i in 1 2 3; do echo $i; sleep 0.2; done", on_stdout=lambda text: seen.append((time.monotonic(), text)))
    assert "".join(text for _, text in seen) == "1\n2\n3\n"
    assert seen[-1][0] - seen[0][0] > 0.2


@check("variables, folder, unicode")
def _(box):
    run = box.commands.run('printf "%s|%s|ä☃😀" "$NAME" "$PWD"', envs={"NAME": "välue $x"}, cwd="/tmp")
    assert run.stdout == "välue $x|/tmp|ä☃😀", run.stdout
    assert box.commands.run("echo $OF_ALL").stdout == "from create\n"


@check("much output")
def _(box):
    run = box.commands.run("head -c 20000000 /dev/zero | tr '\\0' a; echo end >&2")
    assert len(run.stdout) == 20_000_000 and run.stderr == "end\n", len(run.stdout)


@check("in the background: input, end of input")
def _(box):
    run = box.commands.run("cat; echo done", background=True, stdin=True)
    box.commands.send_stdin(run.pid, "héllo\n")
    close = getattr(box.commands, "close_stdin", None)
    if close is None:
        run.kill()
        raise Absent("close_stdin")
    close(run.pid)
    assert run.wait().stdout == "héllo\ndone\n"


@check("without input a command sees its end at once")
def _(box):
    assert box.commands.run("cat; echo done", timeout=20).stdout == "done\n"


@check("many commands at once")
def _(box):
    runs = [box.commands.run(f"sleep 0.2; echo {place}", background=True) for place in range(20)]
    assert [run.wait().stdout for run in runs] == [f"{place}\n" for place in range(20)]


@check("list, kill")
def _(box):
    run = box.commands.run("sleep 300", background=True)
    found = [one for one in box.commands.list() if one.pid == run.pid]
    assert len(found) == 1 and found[0].cmd == "/bin/bash" and "sleep 300" in found[0].args, found
    assert box.commands.kill(run.pid) is True
    fails(e2b.CommandExitException, run.wait)
    assert box.commands.kill(run.pid) is False


@check("reconnect by pid; a client that leaves ends nothing")
def _(box):
    run = box.commands.run("for i in $(seq 40); do echo $i; sleep 0.1; done", background=True)
    run.disconnect()
    again = box.commands.connect(run.pid)
    ended = again.wait()
    assert ended.exit_code == 0 and ended.stdout.endswith("40\n"), ended
    fails(e2b.NotFoundException, lambda: box.commands.connect(999_999))


@check("a command's time")
def _(box):
    began = time.monotonic()
    fails(e2b.TimeoutException, lambda: box.commands.run("sleep 60", timeout=1))
    assert time.monotonic() - began < 20


@check("terminal: create, size, input, kill")
def _(box):
    seen = bytearray()
    term = box.pty.create(e2b.PtySize(rows=30, cols=100), timeout=0)
    reader = threading.Thread(target=lambda: swallow(lambda: term.wait(on_pty=lambda data: seen.extend(data))))
    reader.start()
    box.pty.send_stdin(term.pid, b"stty size\n")
    until(lambda: b"30 100" in seen)
    box.pty.resize(term.pid, e2b.PtySize(rows=40, cols=132))
    box.pty.send_stdin(term.pid, b"stty size\n")
    until(lambda: b"40 132" in seen)
    assert box.pty.kill(term.pid) is True
    reader.join(20)
    assert not reader.is_alive()


@check("terminal: left, and found again")
def _(box):
    connect = need(box.pty, "connect")
    term = box.pty.create(e2b.PtySize(rows=24, cols=80), timeout=0)
    term.disconnect()
    again = connect(term.pid, timeout=0)
    seen = bytearray()
    reader = threading.Thread(target=lambda: swallow(lambda: again.wait(on_pty=lambda data: seen.extend(data))))
    reader.start()
    box.pty.send_stdin(term.pid, b"echo is''there\n")
    until(lambda: b"isthere" in seen)
    assert box.pty.kill(term.pid) is True
    reader.join(20)
    assert not reader.is_alive()


def swallow(body):
    try:
        body()
    except Exception:
        pass


# --- files ---


@check("write and read: text, bytes, unicode names, empty")
def _(box):
    every = bytes(range(256)) * 8
    for path, data in [("a.txt", "hällo ☃"), ("/tmp/däta ☃.bin", every), ("/tmp/\"q\" %22.txt", "q"), ("/tmp/none", "")]:
        box.files.write(path, data)
        if isinstance(data, str):
            assert box.files.read(path) == data, path
        else:
            assert bytes(box.files.read(path, format="bytes")) == data, path
    fails(e2b.NotFoundException, lambda: box.files.read("/tmp/not/there"))


@check("several files in one call")
def _(box):
    write = need(box.files, "write_files")
    write([{"path": "/tmp/many/a", "data": "1"}, {"path": "/tmp/many/b", "data": b"2"}])
    assert (box.files.read("/tmp/many/a"), box.files.read("/tmp/many/b")) == ("1", "2")


@check("exists, info, list, folders, rename, remove")
def _(box):
    assert box.files.make_dir("tree/deep") is True
    assert box.files.make_dir("tree/deep") is False
    box.files.write("tree/deep/file", "12345")
    box.commands.run("ln -s deep/file tree/link; chmod 640 tree/deep/file")
    assert box.files.exists("tree/deep/file") and not box.files.exists("tree/none")
    info = need(box.files, "get_info")("tree/deep/file")
    assert (info.name, info.size, info.mode, info.permissions) == ("file", 5, 0o640, "-rw-r-----"), info
    names = {entry.name: entry for entry in box.files.list("tree")}
    assert set(names) == {"deep", "link"}, names
    assert {entry.name for entry in box.files.list("tree", depth=2)} == {"deep", "link", "file"}
    assert str(names["deep"].type).lower().endswith("dir")
    moved = box.files.rename("tree/deep/file", "tree/moved")
    assert moved.name == "moved" and box.files.read("tree/moved") == "12345"
    box.files.remove("tree")
    assert not box.files.exists("tree")
    fails(e2b.NotFoundException, lambda: box.files.list("tree"))


@check("watch")
def _(box):
    box.files.make_dir("seen/below")
    watch = box.files.watch_dir("seen", recursive=True)
    box.files.write("seen/below/new.txt", "x")
    events = []
    until(lambda: (events.extend(watch.get_new_events()), any("new.txt" in event.name for event in events))[1])
    box.files.remove("seen/below/new.txt")
    until(lambda: (events.extend(watch.get_new_events()), any("remove" in str(event.type).lower() for event in events))[1])
    watch.stop()


@check("a big file, both ways")
def _(box):
    piece = os.urandom(1024 * 1024)
    data = piece * (BIG // len(piece))
    box.files.write("/tmp/big", data)
    assert box.commands.run("stat -c %s /tmp/big").stdout.strip() == str(len(data))
    assert bytes(box.files.read("/tmp/big", format="bytes")) == data
    total = 0
    for part in box.files.read("/tmp/big", format="stream"):
        total += len(part)
    assert total == len(data), total
    box.files.remove("/tmp/big")


@check("signed URLs")
def _(box):
    box.files.write("/tmp/signed.txt", "signed")
    url = box.download_url("/tmp/signed.txt", use_signature_expiration=60)
    assert urllib.request.urlopen(url).read() == b"signed"
    for wrong in [url.replace("signature=v1_", "signature=v1_x"), url.replace("signed.txt", "other.txt")]:
        fails(urllib.error.HTTPError, lambda: urllib.request.urlopen(wrong))
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="/tmp/sent.txt"\r\n\r\nsent\r\n--b--\r\n'
    to = box.upload_url("/tmp/sent.txt", use_signature_expiration=60)
    urllib.request.urlopen(urllib.request.Request(to, form, {"Content-Type": "multipart/form-data; boundary=b"}))
    assert box.files.read("/tmp/sent.txt") == "sent"


# --- what is refused, and why ---


@check("a wrong key, a wrong token, another user")
def _(box):
    wrong = "e2b_" + "0" * 40
    fails(e2b.AuthenticationException, lambda: Sandbox.create(api_key=wrong))
    request = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/files?path=/etc/passwd", headers={"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": "0" * 40})
    assert fails(urllib.error.HTTPError, lambda: urllib.request.urlopen(request)).code == 401
    assert "root" in str(fails(Exception, lambda: box.commands.run("id", user="root")))


@check("network: none unless named, what can not be done is refused")
def _(box):
    try:
        one = Sandbox.create(timeout=60, network={"deny_out": ["0.0.0.0/0"], "allow_out": ["pinned.example.com"]})
    except TypeError as error:
        raise Absent(str(error))
    try:
        found = one.commands.run("getent hosts pinned.example.com >/dev/null && echo named; getent hosts other.example.com >/dev/null || echo unnamed")
        assert found.stdout == "named\nunnamed\n", found
    finally:
        one.kill()
    assert "only allow" in str(fails(Exception, lambda: Sandbox.create(network={"deny_out": ["192.0.2.0/24"]})))
    rules = {"pinned.example.com": [{"transform": {"headers": {"X-Key": "${e2b.identity.tokens.aws}"}}}]}
    assert "placeholder" in str(fails(Exception, lambda: Sandbox.create(network={"rules": rules})))
    assert "operator" in str(fails(Exception, lambda: Sandbox.create(network={"allow_out": ["127.0.0.1"]})))


@check("network: changed while it lives, headers put in")
def _(box):
    headers = {"X-Key": "a-literal-value"}
    try:
        one = Sandbox.create(timeout=60, network={"allow_out": ["first.example.com"], "rules": {"api.example.com": [{"transform": {"headers": headers}}]}})
    except TypeError as error:
        raise Absent(str(error))
    try:
        change = need(one, "update_network")
        named = lambda: one.commands.run("for n in first second api; do getent hosts $n.example.com >/dev/null && echo $n; done; true").stdout.split()
        assert named() == ["first", "api"], named()
        shown = one.get_info().network
        assert "a-literal-value" not in str(shown), shown
        change({"allow_out": ["second.example.com"]})
        assert named() == ["second"], named()
        change({"rules": {"api.example.com": [{"transform": {"headers": headers}}]}})
        assert named() == ["api"], named()
        change({"deny_out": ["0.0.0.0/0"]})
        assert named() == [], named()
        assert "operator" in str(fails(Exception, lambda: change({"allow_out": ["169.254.169.254"]})))
    finally:
        one.kill()


@check("ports: closed, open, with a token")
def _(box):
    def get(port, token):
        headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": str(port)}
        if token:
            headers["E2B-Traffic-Access-Token"] = token
        try:
            return urllib.request.urlopen(urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/page?q=1", headers=headers)).read().decode()
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"

    token = box.traffic_access_token
    assert "port is not open" in get(8123, token)
    server = box.commands.run("mkdir -p /tmp/www && echo hello > /tmp/www/page && cd /tmp/www && exec python3 -m http.server 8123 --bind 127.0.0.1", background=True, timeout=0)
    until(lambda: get(8123, token) == "hello\n")
    assert get(8123, None).startswith("401")
    host = box.get_host(8123)
    assert host.startswith(f"8123-{box.sandbox_id}."), host
    named = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/page", headers={"Host": host, "E2B-Traffic-Access-Token": token})
    assert urllib.request.urlopen(named).read() == b"hello\n"
    server.kill()


@check("the asynchronous client")
def _(box):
    async def drive():
        one = await e2b.AsyncSandbox.create(timeout=120)
        try:
            runs = await asyncio.gather(*(one.commands.run(f"echo {place}") for place in range(10)))
            assert [run.stdout for run in runs] == [f"{place}\n" for place in range(10)]
            await one.files.write("a.txt", "hällo")
            assert await one.files.read("a.txt") == "hällo"
            seen = []
            run = await one.commands.run("cat", background=True, stdin=True, on_stdout=seen.append)
            await one.commands.send_stdin(run.pid, "in\n")
            while seen != ["in\n"]:
                await asyncio.sleep(0.05)
            assert await run.kill() is True
            events = []
            await one.files.make_dir("seen")
            watch = await one.files.watch_dir("seen", on_event=events.append)
            await one.files.write("seen/new.txt", "x")
            while not any(event.name == "new.txt" for event in events):
                await asyncio.sleep(0.05)
            await watch.stop()
        finally:
            await one.kill()

    asyncio.run(asyncio.wait_for(drive(), 60))


# --- code interpreter ---


def interpreter(body):
    try:
        from e2b_code_interpreter import Sandbox as Interpreter
    except ImportError as error:
        raise Absent(str(error))
    one = Interpreter.create(timeout=120)
    try:
        body(one)
    finally:
        one.kill()


@check("code: state between cells, results, output, errors")
def _(box):
    def body(one):
        one.run_code("import math\nx = 20")
        run = one.run_code("print('out'); x + 1")
        assert run.text == "21" and "".join(run.logs.stdout) == "out\n", run
        failed = one.run_code("1/0")
        assert failed.error.name == "ZeroDivisionError", failed
        assert one.run_code("x").text == "20"
        assert one.run_code("import os; os.environ['SET']", envs={"SET": "here"}).text == "'here'"
        seen = []
        one.run_code("import time\nfor i in range(3):\n  print(i, flush=True); time.sleep(0.1)", on_stdout=lambda line: seen.append(str(line)))
        assert "".join(seen) == "0\n1\n2\n", seen

    interpreter(body)


@check("code: contexts, restart, time")
def _(box):
    def body(one):
        context = one.create_code_context(cwd="/tmp")
        one.run_code("y = 1", context=context)
        assert one.run_code("y", context=context).text == "1"
        assert one.run_code("y").error.name == "NameError"
        assert one.run_code("import os; os.getcwd()", context=context).text == "'/tmp'"
        listed = getattr(one, "list_code_contexts", None)
        if listed:
            assert context.id in [found.id for found in listed()]
            one.restart_code_context(context)
            assert one.run_code("y", context=context).error.name == "NameError"
        fails(e2b.TimeoutException, lambda: one.run_code("while True: pass", context=context, timeout=2))
        assert one.run_code("1 + 1", context=context).text == "2"
        if listed:
            one.remove_code_context(context)
            assert context.id not in [found.id for found in listed()]

    interpreter(body)


def main():
    only = sys.argv[1:]
    failed = False
    box = Sandbox.create(timeout=300, metadata={"owner": "tests", "no te": "ä&="}, envs={"OF_ALL": "from create"})
    try:
        for name, body in CHECKS:
            if only and not any(part in name for part in only):
                continue
            began = time.monotonic()
            line = {"check": name, "result": "passes"}
            try:
                body(box)
            except Absent as absent:
                line.update(result="absent", why=str(absent))
            except BaseException as error:
                failed = True
                line.update(result="fails", why=f"{type(error).__name__}: {error}"[:600], trace=traceback.format_exc()[-1500:])
            line["ms"] = round((time.monotonic() - began) * 1000)
            print(json.dumps(line), flush=True)
    finally:
        box.kill()
    sys.exit(failed)


main()
