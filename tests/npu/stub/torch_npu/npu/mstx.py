"""Marks and ranges, which nobody collects here."""


class mstx:
    """The vendor's class of the same name."""

    @staticmethod
    def range_start(*_):
        """Return the number of a range."""
        return 1

    @staticmethod
    def range_end(*_):
        """Do nothing."""


range_start, range_end = mstx.range_start, mstx.range_end
