"""`python -m tallystick`: the command line without its script."""

import sys

from tallystick.cli import main

sys.exit(main())
