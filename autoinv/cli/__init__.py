"""The commands of ``python -m autoinv.tune``, in the order in which its help lists them."""

from autoinv.cli import doctor, maintain, pin, run, show, transfer, warm
from autoinv.cli._command import Command

COMMANDS: tuple[Command, ...] = (
    warm.COMMAND,
    run.COMMAND,
    show.SHOW,
    show.EXPLAIN,
    pin.PIN,
    pin.UNPIN,
    pin.FORGET,
    transfer.EXPORT,
    transfer.IMPORT,
    maintain.VERIFY,
    maintain.PRUNE,
    doctor.COMMAND,
)
