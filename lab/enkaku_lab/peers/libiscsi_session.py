"""A session through libiscsi's own library: any CDB, with status and sense, on one login that stays.

The tools of libiscsi log in for every command; unit attentions and reservations need more. What a
new session is told first (power on) is taken by the library's own TEST UNIT READY at login.
"""

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from enkaku_lab.process import LabError

NORMAL_SESSION = 2
XFER_NONE, XFER_READ, XFER_WRITE = 0, 1, 2
CHECK_CONDITION = 2
STATUS_MAX = 0xFF
"""Above this, libiscsi tells of its own troubles: cancelled, timed out, connection gone."""
TIMEOUT_S = 10


class _Task(ctypes.Structure):
    """The front of libiscsi's `struct scsi_task`."""

    _fields_ = [
        ("status", ctypes.c_int),
        ("cdb_size", ctypes.c_int),
        ("xfer_dir", ctypes.c_int),
        ("expxferlen", ctypes.c_int),
        ("cdb", ctypes.c_ubyte * 16),
        ("residual_status", ctypes.c_int),
        ("residual", ctypes.c_size_t),
        ("error_type", ctypes.c_ubyte),
        ("key", ctypes.c_int),
        ("ascq", ctypes.c_int),
        ("sense_specific", ctypes.c_uint32),
        ("datain_size", ctypes.c_int),
        ("datain", ctypes.c_void_p),
    ]


class _Data(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_char_p)]


def _library() -> ctypes.CDLL:
    name = ctypes.util.find_library("iscsi")
    if not name:
        raise LabError("libiscsi is not installed; scripts/setup installs it (packages.txt)")
    library = ctypes.CDLL(name)
    library.iscsi_create_context.restype = ctypes.c_void_p
    library.scsi_create_task.restype = ctypes.POINTER(_Task)
    library.iscsi_scsi_command_sync.restype = ctypes.POINTER(_Task)
    library.iscsi_get_error.restype = ctypes.c_char_p
    return library


@dataclass(frozen=True)
class Outcome:
    """How a command ended: status, and key and code of the sense data (0 without)."""

    status: int
    key: int = 0
    ascq: int = 0
    data: bytes = b""
    """What came back, of a command that reads."""


class Session:
    """One login to one logical unit."""

    def __init__(self, library: ctypes.CDLL, context: ctypes.c_void_p, lun: int):
        self._library = library
        self._context = context
        self._lun = lun

    def command(self, cdb: bytes, data_out: bytes = b"", room: int = 0) -> Outcome:
        """Executes a CDB that sends data, has room for some, or neither."""
        direction = XFER_WRITE if data_out else XFER_READ if room else XFER_NONE
        task = self._library.scsi_create_task(len(cdb), cdb, direction, len(data_out) or room)
        data = _Data(len(data_out), data_out)
        done = self._library.iscsi_scsi_command_sync(
            self._context, self._lun, task, ctypes.byref(data) if data_out else None
        )
        if not done:
            raise LabError(f"libiscsi: {self._library.iscsi_get_error(self._context).decode()}")
        result = done.contents
        if result.status > STATUS_MAX:
            self._library.scsi_free_scsi_task(done)
            raise LabError("libiscsi: the command was not answered")
        sense = (result.key, result.ascq) if result.status == CHECK_CONDITION else (0, 0)
        good = room and result.status == 0 and result.datain
        data = ctypes.string_at(result.datain, result.datain_size) if good else b""
        outcome = Outcome(result.status, *sense, data)
        self._library.scsi_free_scsi_task(done)
        return outcome

    def test_unit_ready(self) -> Outcome:
        return self.command(bytes(6))

    def lun_reset(self) -> None:
        """LOGICAL UNIT RESET, until it is answered."""
        if self._library.iscsi_task_mgmt_lun_reset_sync(self._context, self._lun) != 0:
            raise LabError(f"reset: {self._library.iscsi_get_error(self._context).decode()}")


@contextmanager
def session(portal: str, target: str, initiator: str, lun: int = 0) -> Iterator[Session]:
    """Logs in for the length of a `with` block."""
    library = _library()
    context = ctypes.c_void_p(library.iscsi_create_context(initiator.encode()))
    try:
        library.iscsi_set_targetname(context, target.encode())
        library.iscsi_set_session_type(context, NORMAL_SESSION)
        library.iscsi_set_timeout(context, TIMEOUT_S)
        library.iscsi_set_noautoreconnect(context, 1)
        if library.iscsi_full_connect_sync(context, portal.encode(), lun) != 0:
            raise LabError(f"login: {library.iscsi_get_error(context).decode()}")
        yield Session(library, context, lun)
        library.iscsi_logout_sync(context)
    finally:
        library.iscsi_destroy_context(context)
