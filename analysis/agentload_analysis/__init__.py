"""The analysis of run directories: tables, report."""
