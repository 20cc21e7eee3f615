"""Makes `format("tallystick")` known to Spark without a call to register it.

Spark imports every installed package whose name begins with `pyspark_` and takes its `DefaultSource`.
"""

from __future__ import annotations

import logging

try:
    from tallystick.spark.format import TallystickSource as DefaultSource
except Exception as error:
    # Spark gives up the lookup at the first package that fails and then finds none of them, other people's included:
    # whatever is wrong here (a Spark that is too old, no pyarrow) must cost our own format only.
    logging.getLogger(__name__).warning(
        "the format 'tallystick' is not available: %s; `tallystick doctor` says what is missing", error
    )

__all__ = ["DefaultSource"]
