"""OpenLDAP's slapd with our schema, on a free port, with a folder of its own. No system service is used."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import Completed, Peer, accepts, free_port, run

SCHEMA = Path(__file__).resolve().parents[3] / "contrib/ldap/enkaku.schema"
SUFFIX = "dc=example"
BASE = f"ou=videos,{SUFFIX}"
USER = f"cn=admin,{SUFFIX}"
PASSWORD = "secret words"


class Slapd:
    """A running directory."""

    def __init__(self, peer: Peer, port: int, folder: Path):
        self.peer, self.port, self.folder = peer, port, folder
        self.url = f"ldap://127.0.0.1:{port}/{BASE}"
        self.password = folder / "password"
        self.password.write_text(f"{PASSWORD}\n")
        self.password.chmod(0o600)
        self.options = ["--directory-user", USER, "--directory-password-file", self.password]

    def wait(self) -> None:
        self.peer.wait_until(
            lambda: accepts("127.0.0.1", self.port), "does not accept connections"
        )

    def kill(self) -> None:
        self.peer.kill()

    def restart(self) -> None:
        self.peer.restart()
        self.wait()

    def tool(self, name: str, *words: object, ldif: str = "", check: bool = True) -> Completed:
        """One of ldap-utils, as the directory's owner; `ldif` is what it reads."""
        file = self.folder / "words.ldif"
        file.write_text(ldif)
        at = ["-x", "-H", f"ldap://127.0.0.1:{self.port}", "-D", USER, "-w", PASSWORD]
        read = ["-f", file] if ldif else []
        return run([need(name), *at, *read, *words], check=check, timeout_s=60)

    def entries(self, filter: str = "(objectClass=ekVideo)", *attributes: str) -> list[dict]:
        """By name of attribute, lists of values as ldapsearch prints them (`:: ` is base64)."""
        words = ["-LLL", "-o", "ldif-wrap=no", "-E", "pr=500/noprompt", "-b", BASE, filter]
        found = []
        for text in self.tool("ldapsearch", *words, *attributes).stdout.split("\n\n"):
            entry: dict[str, list[str]] = {}
            for name, value in re.findall(r"^(\w+):(:? .*)$", text, re.MULTILINE):
                entry.setdefault(name, []).append(value.removeprefix(" "))
            if "dn" in entry:
                found.append(entry)
        return found


@contextmanager
def serve(folder: Path, *lines: str) -> Iterator[Slapd]:
    """`lines` are more of its configuration, before its data base."""
    port = free_port()
    folder = folder / f"slapd-{port}"
    (folder / "db").mkdir(parents=True)
    core = Path("/etc/ldap/schema/core.schema")
    (folder / "slapd.conf").write_text(
        f"include {core}\ninclude {SCHEMA}\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n"
        f"pidfile {folder}/pid\n" + "".join(f"{line}\n" for line in lines) + "database mdb\n"
        f"suffix {SUFFIX}\nrootdn {USER}\nrootpw \"{PASSWORD}\"\ndirectory {folder}/db\n"
        "maxsize 1073741824\nindex objectClass,ekVolumeId eq\nindex ekTitle eq,sub\n"
    )
    argv = [need("slapd"), "-f", folder / "slapd.conf", "-h", f"ldap://127.0.0.1:{port}", "-d", "0"]
    peer = Peer(argv, folder / "slapd.log")
    try:
        server = Slapd(peer, port, folder)
        server.wait()
        server.tool(
            "ldapadd",
            ldif=f"dn: {SUFFIX}\nobjectClass: dcObject\nobjectClass: organization\no: example\n"
            f"dc: example\n\ndn: {BASE}\nobjectClass: organizationalUnit\nou: videos\n",
        )
        yield server
    finally:
        peer.stop()
