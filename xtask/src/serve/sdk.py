"""Times of the official SDK: from the request for a sandbox to the end of its first command. One line each, in
nanoseconds."""

import sys
import time

from e2b import Sandbox

for _ in range(int(sys.argv[1])):
    began = time.perf_counter_ns()
    box = Sandbox.create(timeout=60)
    out = box.commands.run("echo first").stdout
    took = time.perf_counter_ns() - began
    box.kill()
    if out != "first\n":
        sys.exit(f"the command said {out!r}")
    print(took, flush=True)
