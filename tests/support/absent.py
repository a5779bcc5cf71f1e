"""What is raised where a real part cannot be had."""


class Absent(Exception):
    """It can neither be fetched nor built here."""
