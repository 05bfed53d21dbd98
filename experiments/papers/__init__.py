"""The tables and figures of the papers, a folder each."""
