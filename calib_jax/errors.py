"""What a user did that cannot work, said in one sentence."""


class UserError(Exception):
  """A mistake in a config, a path or a file: ``main.py`` prints the sentence, without a traceback, and exits with 2."""
