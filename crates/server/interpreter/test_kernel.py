"""Tests of the kernel, as its caller sees it: `python3 -m unittest` in this folder."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

KERNEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel.py")


class Session:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-u", KERNEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.next = 0

    def ask(self, code, env=None):
        self.next += 1
        words = json.dumps({"id": str(self.next), "code": code, "env": env or {}})
        self.process.stdin.write(words.encode() + b"\n")
        self.process.stdin.flush()

    def events(self):
        events = []
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise EOFError("the kernel is gone after %r" % events[-3:])
            event = json.loads(line)
            if event["id"] != str(self.next):
                continue
            events.append(event)
            if event["type"] == "end_of_execution":
                return events

    def run(self, code, env=None):
        self.ask(code, env)
        return Answer(self.events())

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(10)


class Answer:
    def __init__(self, events):
        self.events = events
        self.results = [event for event in events if event["type"] == "result"]
        self.main = next((result["text"] for result in self.results if result["is_main_result"]), None)
        self.error = next((event for event in events if event["type"] == "error"), None)

    def text(self, kind="stdout"):
        return "".join(event["text"] for event in self.events if event["type"] == kind)


class KernelTest(unittest.TestCase):
    def setUp(self):
        self.session = Session()
        self.addCleanup(self.session.close)
        self.run_code = self.session.run

    def test_names_live_on_and_the_last_value_is_the_result(self):
        answer = self.run_code("x = 20\nx * 2 + 2")
        self.assertEqual(answer.main, "42")
        self.assertEqual(answer.events[0]["type"], "number_of_executions")
        self.assertEqual(answer.events[0]["execution_count"], 1)
        self.assertEqual(self.run_code("x + _").main, "62")
        self.assertIsNone(self.run_code("x;").main)
        self.assertIsNone(self.run_code("None").main)
        self.assertEqual(self.run_code("").results, [])

    def test_output_of_all_kinds_is_captured_before_the_end(self):
        code = (
            "import os, subprocess, sys\n"
            "print('printed')\n"
            "os.write(1, b'raw\\n')\n"
            "subprocess.run(['sh', '-c', 'echo child; echo wrong >&2'])\n"
            "sys.stderr.write('no newline')\n"
            "print('last', end='')\n"
        )
        answer = self.run_code(code)
        self.assertEqual(answer.text(), "printed\nraw\nchild\nlast")
        self.assertEqual(answer.text("stderr"), "wrong\nno newline")
        stamps = [event["timestamp"] for event in answer.events if event["type"] == "stdout"]
        self.assertTrue(all(stamp > 1_500_000_000_000_000_000 for stamp in stamps))

    def test_output_comes_while_the_code_runs(self):
        self.session.ask("import time\nprint('early')\ntime.sleep(30)")
        line = json.loads(self.session.process.stdout.readline())
        line = json.loads(self.session.process.stdout.readline())
        self.assertEqual((line["type"], line["text"]), ("stdout", "early\n"))
        os.kill(self.session.process.pid, signal.SIGINT)
        self.assertEqual(Answer(self.session.events()).error["name"], "KeyboardInterrupt")

    def test_an_interrupt_stops_the_code_and_nothing_else(self):
        self.run_code("kept = 1")
        for code in ("while True: pass", "import asyncio\nawait asyncio.sleep(60)", "import time; time.sleep(60)"):
            self.session.ask(code)
            self.session.process.stdout.readline()
            time.sleep(0.3)
            os.kill(self.session.process.pid, signal.SIGINT)
            self.assertEqual(Answer(self.session.events()).error["name"], "KeyboardInterrupt", code)
        os.kill(self.session.process.pid, signal.SIGINT)
        self.assertEqual(self.run_code("kept").main, "1")

    def test_an_error_has_name_value_and_the_line_of_the_code(self):
        answer = self.run_code("def f():\n    return 1 / 0\nprint('before')\nf()")
        self.assertEqual((answer.error["name"], answer.error["value"]), ("ZeroDivisionError", "division by zero"))
        self.assertIn("return 1 / 0", answer.error["traceback"])
        self.assertNotIn("kernel.py", answer.error["traceback"])
        self.assertEqual(answer.text(), "before\n")
        self.assertEqual(self.run_code("f(").error["name"], "SyntaxError")
        self.assertEqual(self.run_code("raise SystemExit(3)").error["name"], "SystemExit")
        self.assertEqual(self.run_code("class E(Exception):\n  def __str__(self): raise E\nraise E").error["name"], "E")
        self.assertEqual(self.run_code("f.__name__").main, "'f'")

    def test_values_are_shown_in_all_their_forms(self):
        code = (
            "class Page:\n"
            "    def _repr_html_(self): return '<b>x</b>'\n"
            "    def _repr_png_(self): return b'\\x89PNG'\n"
            "    def __repr__(self): return 'page'\n"
            "print('first')\ndisplay(Page())\nprint('second')\nPage()"
        )
        answer = self.run_code(code)
        self.assertEqual([result["is_main_result"] for result in answer.results], [False, True])
        for result in answer.results:
            self.assertEqual((result["html"], result["png"], result["text"]), ("<b>x</b>", "iVBORw==", "page"))
        kinds = [event["type"] for event in answer.events]
        self.assertLess(kinds.index("stdout"), kinds.index("result"))
        broken = self.run_code("class B:\n  def __repr__(self): raise ValueError('no')\nB()")
        self.assertIn("ValueError", broken.text("stderr"))
        self.assertIn("B object", broken.main)

    def test_await_works_at_the_top(self):
        code = "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 'done'\nawait f()"
        self.assertEqual(self.run_code(code).main, "'done'")
        self.assertEqual(self.run_code("x = await f()\nx").main, "'done'")
        self.assertEqual(self.run_code("async for _ in []: pass").error["name"], "TypeError")

    def test_variables_are_those_of_one_run(self):
        code = "import os\nos.environ.get('FH_TEST')"
        self.assertEqual(self.run_code(code, {"FH_TEST": "here"}).main, "'here'")
        self.assertIsNone(self.run_code(code).main)

    def test_huge_output_comes_whole_and_in_pieces(self):
        answer = self.run_code("import os\nfor _ in range(200): os.write(1, b'x' * 100_000)\nprint('\\u00e4' * 500_000)")
        self.assertEqual(len(answer.text()), 20_000_000 + 500_001)
        self.assertGreater(len(answer.events), 100)
        self.assertTrue(answer.text().endswith("\u00e4\n"))
        self.assertNotIn("\ufffd", answer.text())

    def test_code_that_breaks_its_streams_breaks_only_its_own(self):
        for code in ("import os\nos.close(1)", "import sys\nsys.stdout.close()", "import sys\nsys.stdout = None",
                     "import os\nos.set_blocking(1, False)"):
            self.run_code(code)
            self.assertEqual(self.run_code("print('alive')").text(), "alive\n", code)
        self.run_code("import os\nif os.fork() == 0: pass\nelse: os.wait()")
        self.assertEqual(self.run_code("print('one')").text(), "one\n")
        self.assertEqual(self.run_code("input()").error["name"], "EOFError")

    def test_lines_for_the_shell(self):
        self.assertEqual(self.run_code("x = 1\n!echo from the shell\nprint(x)").text(), "from the shell\n1\n")
        self.assertEqual(self.run_code("%%bash\nfor i in 1 2; do echo $i; done").text(), "1\n2\n")
        self.assertEqual(self.run_code("%cd /\nimport os\nos.getcwd()").main, "'/'")
        self.assertEqual(self.run_code("%nonsense").error["name"], "UsageError")

    def test_requests_that_are_none_have_an_answer(self):
        self.session.process.stdin.write(b"not json\n{\"id\": \"7\"}\n")
        self.assertEqual(self.run_code("1").main, "1")


if __name__ == "__main__":
    unittest.main()
