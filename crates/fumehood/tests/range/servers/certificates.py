"""A private authority, made once a build, and a certificate for any name on demand."""

import fcntl
import hashlib
import ipaddress
import os
import shutil
import ssl
import subprocess
import time

FLAWS = ("expired", "self-signed", "wrong-name", "unknown-authority", "wants-client")
_folder = None
_contexts = {}


def prepare(folder):
    """Makes or finds the authority in `folder`; gives the folder that goes over the trust store."""
    global _folder
    _folder = folder
    os.makedirs(folder, exist_ok=True)
    trust = os.path.join(folder, "trust")
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _fresh(os.path.join(trust, "ca-certificates.crt"), 300):
            for name in ("authority", "stranger"):
                _openssl("req", "-x509", *_new_key(f"{name}.key"), "-days", "3650", "-subj", f"/CN=Range {name}",
                         "-addext", "basicConstraints=critical,CA:TRUE",
                         "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", _at(f"{name}.pem"))
            _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", _at("leaf.key"))
            _lay_trust(trust)
        _lay_java_trust(os.path.join(trust, "java"))
    return trust


def authority():
    """The path of the authority's certificate."""
    return _at("authority.pem")


def context(name, flaw=None, protocols=("h2", "http/1.1")):
    """A server's TLS side for `name`."""
    key = (name, flaw, tuple(protocols))
    if key not in _contexts:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(_leaf(name, flaw), _at("leaf.key"))
        if protocols:
            made.set_alpn_protocols(list(protocols))
        if flaw == "wants-client":
            made.verify_mode = ssl.CERT_REQUIRED
            made.load_verify_locations(authority())
        _contexts[key] = made
    return _contexts[key]


def files(name):
    """Certificate and key of an address or a name, without a flaw."""
    return _leaf(name, None), _at("leaf.key")


def _leaf(name, flaw):
    path = _at(hashlib.sha256(f"{name} {flaw}".encode()).hexdigest()[:32] + ".pem")
    if _fresh(path, 20):
        return path
    shown = "another.test" if flaw == "wrong-name" else name
    kind = "IP" if _is_address(shown) else "DNS"
    asked = ["req", "-x509", "-key", _at("leaf.key"), "-days", "30", "-subj", "/CN=range",
             "-addext", f"subjectAltName={kind}:{shown}", "-addext", "basicConstraints=critical,CA:FALSE",
             "-addext", "extendedKeyUsage=serverAuth"]
    issuer = "stranger" if flaw == "unknown-authority" else "authority"
    own = f"{path}.{os.getpid()}"
    if flaw == "expired":
        _expired(shown, own)
    elif flaw == "self-signed":
        _openssl(*asked, "-out", own)
    else:
        _openssl(*asked, "-CA", _at(f"{issuer}.pem"), "-CAkey", _at(f"{issuer}.key"), "-out", own)
    os.rename(own, path)
    return path


def _is_address(text):
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _expired(name, path):
    """Valid for a day, years ago: only the long way of signing lets a day be chosen."""
    work = f"{path}.ca"
    os.makedirs(f"{work}/new", exist_ok=True)
    for file, text in (("index", ""), ("serial", "1000\n"), ("conf", _CONF.format(work=work, name=name))):
        with open(f"{work}/{file}", "w") as out:
            out.write(text)
    _openssl("req", "-new", "-key", _at("leaf.key"), "-subj", "/CN=range", "-out", f"{work}/request")
    _openssl("ca", "-batch", "-config", f"{work}/conf", "-cert", authority(), "-keyfile", _at("authority.key"),
             "-startdate", "20200101000000Z", "-enddate", "20200102000000Z", "-notext",
             "-in", f"{work}/request", "-out", path)


_CONF = """[ca]
default_ca = own
[own]
database = {work}/index
serial = {work}/serial
new_certs_dir = {work}/new
default_md = sha256
policy = any
x509_extensions = leaf
[any]
commonName = optional
[leaf]
subjectAltName = DNS:{name}
basicConstraints = critical,CA:FALSE
"""


def _lay_trust(trust):
    os.makedirs(trust, exist_ok=True)
    with open("/etc/ssl/certs/ca-certificates.crt") as bundle, open(authority()) as own:
        both = bundle.read() + "\n" + own.read()
        own.seek(0)
        alone = own.read()
    hashed = _openssl("x509", "-hash", "-noout", "-in", authority()).strip()
    for name, text in ((f"{hashed}.0", alone), ("ca-certificates.crt", both)):
        with open(os.path.join(trust, name), "w") as file:
            file.write(text)


def _lay_java_trust(folder):
    """The store that Debian's Java reads, where there is a Java."""
    store = os.path.join(folder, "cacerts")
    if shutil.which("keytool") is None or _fresh(store, 300):
        return
    os.makedirs(folder, exist_ok=True)
    own = f"{store}.{os.getpid()}"
    subprocess.run(["keytool", "-importcert", "-noprompt", "-storetype", "JKS", "-storepass", "changeit", "-alias", "range",
                    "-keystore", own, "-file", authority()], check=True, capture_output=True)
    os.chmod(own, 0o644)
    os.rename(own, store)


def _new_key(name):
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", _at(name)]


def _at(name):
    return os.path.join(_folder, name)


def _fresh(path, days):
    return os.path.exists(path) and time.time() - os.path.getmtime(path) < days * 86400


def _openssl(*arguments):
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"openssl {' '.join(arguments)}: {done.stderr}")
    return done.stdout
