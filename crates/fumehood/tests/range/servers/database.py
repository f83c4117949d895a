"""A real PostgreSQL on port 5432 of every address: account `range`, no password, database `range`."""

import glob
import os
import shutil
import signal
import subprocess
import time

_ACCOUNT = "postgres"
_server = None


def start(folder, cache):
    """Starts it; the data folder is copied from one that is made once a build."""
    global _server
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    if not found:
        raise OSError("there is no PostgreSQL here: install Debian's `postgresql`")
    programs = os.path.dirname(found[-1])
    made = os.path.join(cache, "postgres-" + programs.split("/")[4])
    if not os.path.exists(made):
        own = f"{made}.{os.getpid()}"
        os.makedirs(own)
        _give(own)
        _as_account([f"{programs}/initdb", "-D", own, "-U", "range", "-A", "trust", "--no-sync", "--no-instructions"])
        # The database of the account's own name, made where a single process serves alone.
        subprocess.run(_account() + [f"{programs}/postgres", "--single", "-D", own, "postgres"], check=True,
                       input=b"CREATE DATABASE range\n", capture_output=True)
        with open(os.path.join(own, "pg_hba.conf"), "w") as file:
            file.write("local all all trust\nhost all all 0.0.0.0/0 trust\nhost all all ::/0 trust\n")
        try:
            os.rename(own, made)
        except OSError:
            shutil.rmtree(own)
    data = os.path.join(folder, "postgres")
    subprocess.run(["cp", "-a", made, data], check=True)
    command = [f"{programs}/postgres", "-D", data, "-k", data, "-h", "*", "-p", "5432", "-F", "-c", "logging_collector=off"]
    log = open(os.path.join(folder, "postgres.log"), "ab")
    _server = subprocess.Popen(_account() + command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    for _ in range(400):
        ready = subprocess.run([f"{programs}/pg_isready", "-q", "-h", data], check=False).returncode == 0
        if ready:
            return
        time.sleep(0.02)
    raise OSError("PostgreSQL did not start: " + open(os.path.join(folder, "postgres.log")).read()[-2000:])


def stop():
    """Ends it."""
    if _server is not None:
        _server.send_signal(signal.SIGQUIT)
        _server.wait()


def _account():
    """It refuses to run as root."""
    if os.getuid() != 0:
        return []
    return ["setpriv", f"--reuid={_ACCOUNT}", f"--regid={_ACCOUNT}", "--clear-groups", "--"]


def _give(path):
    if os.getuid() == 0:
        shutil.chown(path, _ACCOUNT, _ACCOUNT)


def _as_account(command):
    done = subprocess.run(_account() + command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr}")
