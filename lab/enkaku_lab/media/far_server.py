"""`python -m enkaku_lab.media.far_server KIND FOLDER STATE ADDRESS PORT`: a folder by NFS or SMB, until it is ended.

A process of its own, since it is at the other end of the line, where whether a port accepts can be seen.
"""

import signal
import sys
from pathlib import Path

from enkaku_lab.peers import ganesha, samba

SERVERS = {"nfs": ganesha.serve, "smb": samba.serve}


def main() -> None:
    kind, folder, state, address, port = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with SERVERS[kind](Path(folder), Path(state), address=address, port=int(port)):
        print("ready", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
