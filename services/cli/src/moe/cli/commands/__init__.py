"""The subcommands of `moe`, one module each. They parse options and print; the work is done in the modules above."""
