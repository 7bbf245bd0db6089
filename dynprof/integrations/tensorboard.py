"""TensorBoard: ``dynprof.integrations.tensorboard.log_captures(writer)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.journal.events import listen

if TYPE_CHECKING:
    from dynprof.journal.events import Event


def log_captures(writer: Any) -> None:
    """Write the path of each capture as a text at its last step, with its verdict if analysed.

    Args:
        writer: A ``SummaryWriter`` of torch or tensorboardX.
    """

    def log(event: Event) -> None:
        name = "verdict" if event.verdict else "capture"
        text = event.verdict or event.capture or event.text
        writer.add_text(f"dynprof/{name}", f"    {text}", event.last_step)  # Markdown for code
        writer.flush()

    listen(log, "TensorBoard", "captured", "analysed")
