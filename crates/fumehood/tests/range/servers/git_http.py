"""Git over HTTP: the real `git http-backend`, for every repository below the range's folder.

`/git/NAME.git/...`; a path with a key set (`keys`) wants it, as any other path does.
"""

import os
import subprocess
import zlib

root = None


def wanted(request):
    """Whether the path is a repository's."""
    return _path(request).startswith("/git/")


def answer(request):
    """What the CGI program says."""
    body = request.body
    if request.field("content-encoding") == "gzip":
        body = zlib.decompress(body, 31)
    path, _, query = request.target.partition("?")
    environment = {
        "PATH": os.environ.get("PATH", ""), "GIT_PROJECT_ROOT": root, "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": _path(request).removeprefix("/git"), "QUERY_STRING": query,
        "REQUEST_METHOD": request.method, "CONTENT_TYPE": request.field("content-type"),
        "CONTENT_LENGTH": str(len(body)), "GIT_PROTOCOL": request.field("git-protocol"),
        "REMOTE_USER": "someone", "REMOTE_ADDR": request.connection.address, "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
        "GIT_CONFIG_KEY_1": "http.receivepack", "GIT_CONFIG_VALUE_1": "true",
    }
    done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=environment)
    head, _, rest = done.stdout.partition(b"\r\n\r\n")
    fields = [tuple(part.strip() for part in line.split(":", 1)) for line in head.decode("latin-1").split("\r\n") if ":" in line]
    status = next((int(value.split()[0]) for name, value in fields if name.lower() == "status"), 200)
    return status, [(name, value) for name, value in fields if name.lower() != "status"], rest


def _path(request):
    return request.target.partition("?")[0]


def create(name):
    """A bare repository with one commit."""
    place = os.path.join(root, name)
    environment = dict(os.environ, HOME=root, GIT_AUTHOR_NAME="A", GIT_AUTHOR_EMAIL="a@example.com",
                       GIT_COMMITTER_NAME="A", GIT_COMMITTER_EMAIL="a@example.com", GIT_CONFIG_NOSYSTEM="1")
    run = lambda *words, **more: subprocess.run(["git", *words], check=True, capture_output=True, env=environment, **more)
    run("init", "--bare", "--initial-branch=main", place)
    tree = run("-C", place, "mktree", input=b"").stdout.decode().strip()
    blob = run("-C", place, "hash-object", "-w", "--stdin", input=b"in the range\n").stdout.decode().strip()
    tree = run("-C", place, "mktree", input=f"100644 blob {blob}\tREADME\n".encode()).stdout.decode().strip()
    commit = run("-C", place, "commit-tree", "-m", "first", tree).stdout.decode().strip()
    run("-C", place, "update-ref", "refs/heads/main", commit)
    return commit
