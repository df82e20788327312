"""The commands of ``python -m autoinv.tune``, in the order in which its help lists them."""

from autoinv.commands import care, doctor, pinning, show, transfer, warm
from autoinv.commands._command import Command

COMMANDS: tuple[Command, ...] = (
    warm.COMMAND,
    show.SHOW,
    show.EXPLAIN,
    pinning.PIN,
    pinning.UNPIN,
    pinning.FORGET,
    transfer.EXPORT,
    transfer.IMPORT,
    care.VERIFY,
    care.PRUNE,
    doctor.COMMAND,
)
