"""`python -m p2psync`: the same as the `p2psync` command."""

from p2psync.cli.main import main

if __name__ == "__main__":
    main()
