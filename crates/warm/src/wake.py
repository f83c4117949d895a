# Runs in a process that goes on with an image: makes it somebody else, and runs what it was asked for, as the
# interpreter would from its command line.

import atexit
import io
import os
import struct
import sys
import threading
import traceback


def wake(box, place):
    """Never returns."""
    count, variables = struct.unpack_from("<QQ", box, place)
    place += 16
    strings = []
    for _ in range(count + variables):
        end = box.find(b"\0", place)
        strings.append(box[place:end])
        place = end + 1
    code = 1
    try:
        environment(strings[count:])
        # Those of the rehearsal were made for pipes.
        streams([stream for stream in STREAMS if os.isatty(stream[0])])
        if os.environb.get(b"PYTHONUNBUFFERED"):
            unbuffer()
        identity()
        code = obey([os.fsdecode(word) for word in strings[1:count]])
    except BaseException as error:
        code = ended(error)
    finish(code)


def environment(pairs):
    """Only what differs is touched: a page that is written is a page of one's own."""
    new = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair[1:])
    old = os.environb
    for name in [name for name in old if name not in new]:
        del old[name]
    for name, value in new.items():
        if old.get(name) != value:
            old[name] = value


STREAMS = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


def streams(wanted=STREAMS):
    """As the interpreter makes them at its start, of what these numbers are now."""
    for number, name, mode in wanted:
        try:
            lines = number == 2 or os.isatty(number)
            # Not closed when they are forgotten: their numbers are not theirs alone.
            raw = open(number, mode + "b", buffering=-1, closefd=False)
            errors = "backslashreplace" if number == 2 else "strict"
            newline = None if mode == "r" else "\n"
            new = io.TextIOWrapper(raw, "utf-8", errors, newline=newline, line_buffering=lines)
        except OSError:
            new = None
        setattr(sys, name, new)
        setattr(sys, "__%s__" % name, new)


def rehearse():
    """Goes through what every child does first, while what is written by that is still everybody's."""
    streams()
    environment([name + b"=" + value for name, value in os.environb.items()])
    identity(False)
    exec(compile("", "<string>", "exec", dont_inherit=True), {})


def identity(hooks=True):
    """What must not be the same in two children of one image. Hashes of strings are: their seed is in too much."""
    modules = sys.modules
    threading.current_thread()._set_native_id()
    steps = [
        ("random", lambda module: module.seed()),
        ("numpy.random", lambda module: module.seed()),
        ("torch", lambda module: module.seed()),
        ("ssl", lambda module: module.RAND_add(os.urandom(64), 64.0)),
        ("tempfile", lambda module: setattr(module, "_name_sequence", None)),
        ("uuid", lambda module: setattr(module, "_node", None)),
    ]
    for name, step in steps:
        module = modules.get(name)
        if module is not None:
            step(module)
    import __main__

    hook = getattr(__main__, "after_fork", None)
    if hooks and callable(hook):
        hook()


def unbuffer():
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)


def obey(words):
    import __main__

    names = __main__.__dict__
    while words and words[0] in ("-u", "-q"):
        if words.pop(0) == "-u":
            unbuffer()
    if words and words[0] == "-c" and len(words) > 1:
        sys.argv, sys.path[0:0] = ["-c"] + words[2:], [""]
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), names)
    elif words and words[0] == "-m" and len(words) > 1:
        import runpy

        sys.argv, sys.path[0:0] = ["-m"] + words[2:], [os.getcwd()]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words and words[0] != "-" and words[0].startswith("-"):
        sys.stderr.write(
            "fumehood: a prepared interpreter does not take `%s`; it takes -c CODE, -m MODULE, FILE, -, -u and "
            "-q, and arguments after them\n" % words[0]
        )
        return 2
    elif words and words[0] != "-":
        sys.argv, sys.path[0:0] = words, [os.path.dirname(os.path.abspath(words[0]))]
        try:
            with open(words[0], "rb") as file:
                source = file.read()
        except OSError as error:
            sys.stderr.write("fumehood: can't open file %r: %s\n" % (words[0], error))
            return 2
        names["__file__"] = words[0]
        exec(compile(source, words[0], "exec", dont_inherit=True), names)
    elif os.isatty(0):
        import code

        sys.argv, sys.path[0:0] = [""], [""]
        try:
            import readline  # noqa: F401
        except ImportError:
            pass
        code.interact(banner="", local=names, exitmsg="")
    else:
        sys.argv, sys.path[0:0] = words or [""], [""]
        exec(compile(sys.stdin.read(), "<stdin>", "exec", dont_inherit=True), names)
    return 0


def ended(error):
    """What an exception that nobody caught comes to, as an exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    if isinstance(error, KeyboardInterrupt):
        import signal

        flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def flush():
    failed = False
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            failed = True
    return failed


def finish(code):
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    os._exit(120 if flush() and code == 0 else code)
