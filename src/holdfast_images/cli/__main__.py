"""`python -m holdfast_images.cli` is the command `holdfast`, with its image commands."""

from holdfast_images.cli.main import main

raise SystemExit(main())
