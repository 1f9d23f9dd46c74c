"""`python -m holdfast.cli` is the command `holdfast`."""

from holdfast.cli.main import main

raise SystemExit(main())
