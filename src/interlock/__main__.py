"""`python -m interlock` is the command `interlock`."""

import sys

from interlock.console.main import main

sys.exit(main())
