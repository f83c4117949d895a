"""A Python that remembers: runs one piece of code after another in one namespace.

Requests come as lines of JSON on standard input, `{"id": "1", "code": "1 + 1", "env": {"NAME": "value"}}`; events go as
lines of JSON to standard output, each with the `id` of its request:

    number_of_executions   execution_count                  first
    stdout, stderr         text, timestamp (ns since 1970)  as it comes, also of child processes
    result                 text, html, png, ...; is_main_result
    error                  name, value, traceback           at most one
    end_of_execution                                        last

SIGINT stops the code that runs. What comes while nothing runs has `"id": null`. Needs Python 3.8 and nothing else.
"""

import ast
import asyncio
import base64
import codecs
import fcntl
import inspect
import io
import json
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings

CHUNK_BYTES = 64 * 1024
RESULT_CHARS = 32 * 1024 * 1024
MARK_WAIT_SECONDS = 10.0

# Method of an object, key of a result, whether the value is bytes.
REPRS = [
    ("_repr_html_", "html", False),
    ("_repr_markdown_", "markdown", False),
    ("_repr_svg_", "svg", False),
    ("_repr_png_", "png", True),
    ("_repr_jpeg_", "jpeg", True),
    ("_repr_pdf_", "pdf", True),
    ("_repr_latex_", "latex", False),
    ("_repr_json_", "json", False),
    ("_repr_javascript_", "javascript", False),
]
MIMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
}


def high(fd):
    """The same open file under a number that no code expects, and that children do not get."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)


class Events:
    """Lines out, each whole."""

    def __init__(self, fd):
        self.fd = fd
        self.lock = threading.Lock()
        self.id = None

    def emit(self, kind, **fields):
        event = {"type": kind, "id": self.id}
        event.update(fields)
        line = memoryview(json.dumps(event, default=str).encode("utf-8", "replace") + b"\n")
        with self.lock:
            while line:
                line = line[os.write(self.fd, line):]


class Capture:
    """Everything that is written to one descriptor, by whomever, as events."""

    def __init__(self, events, kind, number):
        self.events = events
        self.kind = kind
        self.number = number
        read, write = os.pipe()
        self.reader, self.writer = high(read), high(write)
        os.close(read)
        os.close(write)
        self.mark = None
        self.seen = threading.Event()
        self.attach()
        threading.Thread(target=self.run, name=kind, daemon=True).start()

    def attach(self):
        """Puts the pipe (back) in the descriptor's place, whatever the code did with that."""
        os.dup2(self.writer, self.number)

    def settle(self):
        """Waits until all that was written before is told."""
        self.seen.clear()
        mark = b"\0fumehood " + os.urandom(16).hex().encode() + b"\0"
        self.mark = mark
        end = time.monotonic() + MARK_WAIT_SECONDS
        while time.monotonic() < end:
            try:
                os.write(self.writer, mark)
                break
            except BlockingIOError:
                # A child made the pipe one that does not wait, and it is full.
                time.sleep(0.01)
        self.seen.wait(MARK_WAIT_SECONDS)
        self.mark = None

    def run(self):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        kept = b""
        while True:
            try:
                data = os.read(self.reader, CHUNK_BYTES)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            if not data:
                return
            data, kept = kept + data, b""
            mark = self.mark
            found = data.find(mark) if mark else -1
            if found >= 0:
                self.tell(decoder.decode(data[:found], True))
                decoder.reset()
                rest = data[found + len(mark):]
                self.mark = None
                self.seen.set()
                data = rest
            elif mark:
                # The beginning of a mark may be the end of what was read.
                for length in range(min(len(mark) - 1, len(data)), 0, -1):
                    if data.endswith(mark[:length]):
                        data, kept = data[:-length], data[-length:]
                        break
            self.tell(decoder.decode(data))

    def tell(self, text):
        if text:
            self.events.emit(self.kind, text=text, timestamp=time.time_ns())


class UsageError(Exception):
    """A line that is neither Python nor a known command."""


class Kernel:
    def __init__(self):
        self.requests = os.fdopen(high(0), "rb")
        self.events = Events(high(1))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self.captures = [Capture(self.events, "stdout", 1), Capture(self.events, "stderr", 2)]
        self.pid = os.getpid()
        self.count = 0
        self.interruptible = False
        self.interrupted = False
        self.loop = None
        self.main = types.ModuleType("__main__")
        self.main.__dict__.update(
            {"__builtins__": __builtins__, "display": self.display, "__fumehood_line__": self.line}
        )
        sys.modules["__main__"] = self.main
        sys.argv = [""]
        sys.path.insert(0, "")
        os.environ.setdefault("MPLBACKEND", "Agg")
        warnings.filterwarnings("ignore", message=".*non-interactive.*")
        self.streams()

    def streams(self):
        """Fresh streams for each run: code may have closed or replaced them."""
        for capture in self.captures:
            capture.attach()
        for name, number in (("stdout", 1), ("stderr", 2)):
            raw = os.fdopen(number, "wb", buffering=CHUNK_BYTES, closefd=False)
            stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
            setattr(sys, name, stream)
            setattr(sys, "__" + name + "__", stream)

    def settle(self):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        for capture in self.captures:
            capture.settle()

    def on_interrupt(self, _signal, _frame):
        if self.interruptible:
            raise KeyboardInterrupt
        self.interrupted = True

    def protected(self, work):
        """Does what must not be stopped halfway; a stop that was asked for meanwhile follows."""
        before, self.interruptible = self.interruptible, False
        try:
            return work()
        finally:
            self.interruptible = before
            if before and self.interrupted:
                self.interrupted = False
                raise KeyboardInterrupt

    def serve(self):
        while True:
            line = self.requests.readline()
            if not line:
                return
            try:
                request = json.loads(line)
                code, env = str(request["code"]), dict(request.get("env") or {})
                self.events.id = request.get("id")
            except (ValueError, KeyError, TypeError) as error:
                self.events.emit("error", name="RequestError", value=str(error), traceback="")
                self.events.emit("end_of_execution")
                continue
            self.execute(code, env)
            self.events.emit("end_of_execution")
            self.events.id = None

    def execute(self, code, env):
        self.count += 1
        self.events.emit("number_of_executions", execution_count=self.count)
        self.streams()
        before = {name: os.environ.get(name) for name in env}
        os.environ.update({str(name): str(value) for name, value in env.items()})
        signal.signal(signal.SIGINT, self.on_interrupt)
        failure = None
        try:
            self.interrupted = False
            self.interruptible = True
            value = self.run(code)
            self.interruptible = False
        except BaseException as error:
            self.interruptible = False
            failure = error
        if os.getpid() != self.pid:
            # A fork of the code's own that came to the end of it.
            os._exit(0)
        self.interruptible = False
        self.settle()
        if failure is None and value is not None:
            self.main.__dict__["_"] = value
            self.result(value, True)
        self.figures()
        if failure is not None:
            self.fail(failure)
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old

    def run(self, code):
        name = "<cell %d>" % self.count
        try:
            tree = ast.parse(code, name)
        except SyntaxError:
            code = commands(code)
            tree = ast.parse(code, name)
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        self.step(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if last is not None:
            return self.step(compile(last, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        return None

    def step(self, compiled):
        value = eval(compiled, self.main.__dict__)
        if compiled.co_flags & inspect.CO_COROUTINE:
            if self.loop is None or self.loop.is_closed():
                self.loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self.loop)
            task = self.loop.create_task(value)
            try:
                return self.loop.run_until_complete(task)
            except KeyboardInterrupt:
                task.cancel()
                raise
        return value

    def display(self, *values, **_options):
        """Shows values in all forms they have, at once."""
        for value in values:
            self.protected(lambda: (self.settle(), self.result(value, False)))

    def result(self, value, is_main):
        fields = {}
        try:
            fields = forms(value)
        except Exception:
            sys.stderr.write(traceback.format_exc())
            self.settle()
            fields.setdefault("text", object.__repr__(value))
        if any(isinstance(field, str) and len(field) > RESULT_CHARS for field in fields.values()):
            fields = {"text": str(fields.get("text"))[:RESULT_CHARS]}
        self.events.emit("result", is_main_result=is_main, **fields)

    def figures(self):
        """Shows what was drawn and is not shown yet."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        try:
            for number in pyplot.get_fignums():
                self.result(pyplot.figure(number), False)
            pyplot.close("all")
        except Exception as error:
            self.fail(error)

    def fail(self, error):
        # The frames of this program are nobody's business.
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        try:
            lines = traceback.format_exception(type(error), error, trace)
            value = str(error)
        except Exception:
            lines, value = ["%s\n" % type(error).__name__], "its text can not be made"
        self.events.emit("error", name=type(error).__name__, value=value, traceback="".join(lines))

    def line(self, kind, rest):
        """A line for the shell or the kernel, from among those of the code."""
        if kind == "!":
            sys.stdout.flush()
            status = subprocess.call(rest, shell=True, executable="/bin/sh")
            self.main.__dict__["_exit_code"] = status
            return None
        name, _, words = rest.partition(" ")
        if name == "pip":
            return self.line("!", sys.executable + " -m pip " + words)
        if name == "cd":
            os.chdir(os.path.expanduser(words.strip() or "~"))
            return None
        if name == "env":
            key, equals, value = words.strip().partition("=")
            if equals:
                os.environ[key] = value
                return None
            return os.environ.get(key) if key else dict(os.environ)
        if name in ("matplotlib", "config", "autosave", "load_ext", "reload_ext", "autoreload"):
            return None
        raise UsageError("there is no `%%%s` here" % name)


def commands(code):
    """Python with its `!command` and `%name` lines as calls; raises what Python says of the rest."""
    first, _, rest = code.lstrip().partition("\n")
    if first.split() and first.split()[0] in ("%%bash", "%%sh"):
        return "__fumehood_line__('!', %r)" % rest
    lines = []
    for line in code.split("\n"):
        bare = line.lstrip()
        if bare[:1] in ("!", "%") and bare[1:].strip():
            line = "%s__fumehood_line__(%r, %r)" % (line[: len(line) - len(bare)], bare[0], bare[1:].strip())
        lines.append(line)
    return "\n".join(lines)


def forms(value):
    """All forms that a value says it has."""
    fields = {}
    kind = type(value)
    bundle = getattr(kind, "_repr_mimebundle_", None)
    if callable(bundle):
        found = bundle(value)
        found = found[0] if isinstance(found, tuple) else found
        for mime, form in (found or {}).items():
            put(fields, MIMES.get(mime), form, mime)
    for method, key, _binary in REPRS:
        if key not in fields and callable(getattr(kind, method, None)):
            form = getattr(value, method)()
            put(fields, key, form[0] if isinstance(form, tuple) else form, None)
    module = getattr(kind, "__module__", "") or ""
    if module == "matplotlib.figure" and "png" not in fields:
        buffer = io.BytesIO()
        value.savefig(buffer, format="png", bbox_inches="tight")
        put(fields, "png", buffer.getvalue(), None)
        sys.modules["matplotlib.pyplot"].close(value)
    if module.startswith("pandas.") and kind.__name__ == "DataFrame":
        fields["data"] = json.loads(json.dumps(value.to_dict(orient="list"), default=str))
    fields.setdefault("text", repr(value))
    return fields


def put(fields, key, form, mime):
    if form is None:
        return
    if isinstance(form, (bytes, bytearray)):
        form = base64.b64encode(form).decode("ascii")
    if key is None:
        fields.setdefault("extra", {})[mime] = form
    else:
        fields[key] = form


if __name__ == "__main__":
    Kernel().serve()
