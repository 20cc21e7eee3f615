"""Options of Python for programs that fork: every warning is an error, except two that a fork cannot avoid."""

FORKING_WARNINGS = (
    *("-W", "error"),
    # Python 3.12 and newer warn of every fork beside running threads, which is what these programs are for.
    *("-W", "ignore:This process (pid:DeprecationWarning"),
    # Python 3.13 and newer. A child cannot close the connections that its parent opened.
    *("-W", "ignore:unclosed database:ResourceWarning"),
)
