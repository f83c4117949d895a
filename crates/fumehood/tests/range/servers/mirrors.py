"""Small mirrors of package registries, as the trees of files that they are: `mirrors.py FOLDER HOST`.

`pypi/simple/` (one wheel, one source package), `npm/` (one package), `cargo/` (a sparse index and one crate), `apt/`
(an unsigned repository with one package). All name themselves `rangepack`, version 1.0.0.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import zipfile

NAME, VERSION = "rangepack", "1.0.0"


def main():
    folder, host = sys.argv[1:]
    own = f"https://{host}/files"
    put = lambda path, data: _put(os.path.join(folder, path), data)
    for name, data in {**_pypi(), **_npm(own), **_cargo(own), **_apt()}.items():
        put(name, data)


def _pypi():
    tag = f"{NAME}-{VERSION}"
    metadata = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"
    module = 'WORD = "from the mirror"\n'
    members = {f"{NAME}.py": module, f"{tag}.dist-info/METADATA": metadata,
               f"{tag}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: range\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    digest = lambda text: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    record = "".join(f"{name},sha256={digest(text)},{len(text)}\n" for name, text in members.items())
    members[f"{tag}.dist-info/RECORD"] = record + f"{tag}.dist-info/RECORD,,\n"
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as out:
        for name, text in members.items():
            out.writestr(name, text)
    setup = f"from setuptools import setup\nsetup(name='{NAME}-source', version='{VERSION}', py_modules=['{NAME}'])\n"
    files = {f"{tag}-py3-none-any.whl": wheel.getvalue()}
    source = {f"{NAME}_source-{VERSION}.tar.gz": _tar({
        f"{NAME}_source-{VERSION}/setup.py": setup, f"{NAME}_source-{VERSION}/{NAME}.py": module,
        f"{NAME}_source-{VERSION}/PKG-INFO": metadata.replace(NAME, f"{NAME}-source")})}
    tree = {}
    for project, held in ((NAME, files), (f"{NAME}-source", source)):
        links = "".join(f'<a href="../../held/{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a><br>\n'
                        for name, data in held.items())
        tree[f"pypi/simple/{project}/index.html"] = f"<!DOCTYPE html><html><body>\n{links}</body></html>\n"
        tree.update({f"pypi/held/{name}": data for name, data in held.items()})
    return tree


def _npm(own):
    described = {"name": NAME, "version": VERSION, "main": "index.js"}
    packed = _tar({"package/package.json": json.dumps(described), "package/index.js": 'module.exports = "from the mirror";\n'})
    place = f"npm/{NAME}/-/{NAME}-{VERSION}.tgz"
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    dist = {"tarball": f"{own}/{place}", "integrity": integrity, "shasum": hashlib.sha1(packed).hexdigest()}
    document = {"name": NAME, "dist-tags": {"latest": VERSION}, "versions": {VERSION: {**described, "dist": dist}}}
    return {f"npm/{NAME}/index.html": json.dumps(document), place: packed}


def _cargo(own):
    packed = _tar({f"{NAME}-{VERSION}/Cargo.toml": f'[package]\nname = "{NAME}"\nversion = "{VERSION}"\nedition = "2021"\n',
                   f"{NAME}-{VERSION}/src/lib.rs": 'pub const WORD: &str = "from the mirror";\n'})
    line = {"name": NAME, "vers": VERSION, "deps": [], "cksum": hashlib.sha256(packed).hexdigest(), "features": {},
            "yanked": False}
    return {"cargo/config.json": json.dumps({"dl": f"{own}/cargo/held/{{crate}}-{{version}}.crate"}),
            f"cargo/{NAME[:2]}/{NAME[2:4]}/{NAME}": json.dumps(line) + "\n", f"cargo/held/{NAME}-{VERSION}.crate": packed}


def _apt():
    control = (f"Package: {NAME}\nVersion: {VERSION}\nArchitecture: all\nMaintainer: Range <range@example.com>\n"
               "Description: a package of the range\n")
    package = _ar({"debian-binary": b"2.0\n", "control.tar.gz": _tar({"./control": control}),
                   "data.tar.gz": _tar({f"./usr/share/{NAME}/word": "from the mirror\n"})})
    place = f"pool/{NAME}_{VERSION}_all.deb"
    listed = (control + f"Filename: {place}\nSize: {len(package)}\nSHA256: {hashlib.sha256(package).hexdigest()}\n\n").encode()
    packed = gzip.compress(listed, mtime=0)
    sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-all/{name}\n"
                   for name, data in (("Packages", listed), ("Packages.gz", packed)))
    release = ("Origin: range\nSuite: stable\nCodename: stable\nArchitectures: all amd64\nComponents: main\n"
               f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{sums}")
    return {f"apt/{place}": package, "apt/dists/stable/Release": release,
            "apt/dists/stable/main/binary-all/Packages": listed, "apt/dists/stable/main/binary-all/Packages.gz": packed}


def _tar(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in members.items():
            data = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _ar(members):
    whole = b"!<arch>\n"
    for name, data in members.items():
        whole += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return whole


def _put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)


main()
